//! The pipeline on simulated GPUs that model only time (see the book's page about them): a real host drives
//! eight "H100s" through a GPT of 1.3 billion parameters. Covers schedules against their predictions, copies
//! overlapped with kernels, the host against plain tch, and the choices of `plan`. `make simulated-gpus`
//! builds the devices; without them it prints so and measures nothing.
//!
//! `cargo bench --bench simulated -- PART..` measures those parts alone.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/cuda/apart.rs"]
mod apart;
mod choices;
mod clusters;
mod copies;
mod host;
mod job;
mod picture;
mod plain;
#[path = "../report_support/mod.rs"]
mod report_support;
mod schedules;

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use report_support::Report;

/// A measurement in its own process: name, device settings, and function.
type Part = (&'static str, fn() -> String, fn() -> Result<Value>);

const PARTS: [Part; 9] = [
    ("schedules", job::h100s, schedules::measure),
    ("host_limit", job::h100s, host::limit),
    ("host_cost", job::no_time, host::cost),
    ("copies", copies::traced_h100s, copies::measure),
    ("copies_that_take_no_time", job::no_links, copies::measure),
    ("cuda_graphs", job::two_h100s, choices::graphs),
    ("offload", job::near_the_host, choices::offload),
    ("cluster_of_8", || job::two_nodes(4), clusters::eight_cards),
    (
        "cluster_of_16",
        || job::two_nodes(8),
        clusters::sixteen_cards,
    ),
];

/// Time limit of one part.
const LIMIT: Duration = Duration::from_mins(15);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name, file] = arguments.as_slice()
        && flag == "--one"
    {
        let part = PARTS.iter().find(|(own, ..)| own == name);
        let (_, _, measure) = part.with_context(|| format!("there is no part `{name}`"))?;
        return Ok(std::fs::write(file, measure()?.to_string())?);
    }
    job::write_devices()?;
    let mut report = Report::new("simulated");
    let asked = |name: &str| {
        let mut names = arguments.iter().filter(|word| !word.starts_with('-'));
        let none = names.clone().next().is_none();
        none || names.any(|own| name.starts_with(own.as_str()))
    };
    let mut all = serde_json::Map::new();
    for (name, settings, _) in PARTS.iter().filter(|(name, ..)| asked(name)) {
        eprintln!("{name} ...");
        let measured = apart(name, &settings())?;
        let Some(measured) = measured else {
            println!("skipped: there are no simulated GPUs (`make simulated-gpus`)");
            return Ok(());
        };
        eprintln!("{measured:#}");
        all.insert((*name).into(), measured);
    }
    let of = |names: &[&str]| -> Option<Vec<&Value>> {
        names.iter().map(|name| all.get(*name)).collect()
    };
    if let Some(found) = of(&["schedules"]) {
        schedules::claims(&mut report, found[0]);
    }
    if let Some(found) = of(&["host_limit", "host_cost"]) {
        host::claims(&mut report, found[0], found[1]);
    }
    if let Some(found) = of(&["copies", "copies_that_take_no_time"]) {
        copies::claims(&mut report, found[0], found[1])?;
    }
    for name in ["cuda_graphs", "offload"] {
        if let Some(found) = of(&[name]) {
            choices::claims(&mut report, name, found[0]);
        }
    }
    for name in ["cluster_of_8", "cluster_of_16"] {
        if let Some(found) = of(&[name]) {
            clusters::claims(&mut report, name, found[0]);
        }
    }
    report.row(&all);
    report.write()
}

/// Returns `None` if the devices are not built.
fn apart(name: &str, settings: &str) -> Result<Option<Value>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("measured.json");
    let arguments = ["--one".as_ref(), name.as_ref(), file.as_os_str()];
    let ended = apart::run_on(Some(settings), &arguments, LIMIT)?;
    if ended
        .output
        .contains("asked for (GPIPE_SIMULATE_GPUS) and not built")
    {
        return Ok(None);
    }
    match std::fs::read_to_string(&file) {
        Ok(text) if ended.code() == Some(0) => Ok(Some(serde_json::from_str(&text)?)),
        _ => anyhow::bail!("{name}: {}", ended.why()),
    }
}
