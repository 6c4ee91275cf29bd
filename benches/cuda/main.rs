//! Checks on a CUDA device: steps against PyTorch's, stages on one card, overlap of copies and kernels, the
//! host's share, training under a memory limit. Writes one JSON object (`--json FILE`, else standard output).
//! See `benches/cuda/README.md`.
//!
//! Each measurement runs in its own process, and the file is rewritten after each, so that a crash loses only
//! one. Without a device it prints the reason and measures nothing.

#[path = "../../tests/cuda/apart.rs"]
mod apart;
mod gpt2;
mod transfers;

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Map, Value, json};

/// One measurement, by name.
type Case = (&'static str, fn() -> Result<Value>);

const CASES: [Case; 7] = [
    ("gpt2_one_stage", gpt2::one_stage),
    ("gpt2_four_micro_batches", gpt2::four_micro_batches),
    ("gpt2_two_stages_one_card", gpt2::two_stages),
    ("copies_behind_computation", transfers::hidden),
    ("host_share", gpt2::host_share),
    ("cuda_graphs", gpt2::graphs),
    ("gpt2_xl_under_a_limit", gpt2::under_a_limit),
];

/// Time limit of one measurement.
const LIMIT: Duration = Duration::from_mins(15);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let after = |flag: &str| {
        let place = arguments.iter().position(|argument| argument == flag);
        place.and_then(|place| arguments.get(place + 1))
    };
    let path = after("--json");
    if let Some(name) = after("--one") {
        return write(path, &here(name));
    }
    let mut all = Map::new();
    if let Err(why) = gpipe::device::cuda_available() {
        println!("the CUDA benchmarks are skipped: {why}");
        all.insert("skipped".into(), json!(why.to_string()));
    } else {
        for (name, _) in CASES {
            eprintln!("{name} ...");
            let value = apart(name).unwrap_or_else(|error| told(&error));
            eprintln!("{value:#}");
            all.insert(name.into(), value);
            if path.is_some() {
                write(path, &Value::Object(all.clone()))?;
            }
        }
    }
    write(path, &Value::Object(all))
}

fn write(path: Option<&String>, value: &Value) -> Result<()> {
    let text = format!("{value:#}\n");
    match path {
        Some(path) => std::fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

fn told(error: &anyhow::Error) -> Value {
    json!({"error": format!("{error:#}")})
}

/// Runs a measurement in this process.
fn here(name: &str) -> Value {
    let case = CASES.iter().find(|(own, _)| *own == name);
    let measured = match case {
        Some((_, case)) => case(),
        None => Err(anyhow::anyhow!("there is no measurement `{name}`")),
    };
    measured.unwrap_or_else(|error| told(&error))
}

/// Runs a measurement in a separate process.
fn apart(name: &str) -> Result<Value> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("measured.json");
    let arguments = [
        "--one".as_ref(),
        name.as_ref(),
        "--json".as_ref(),
        path.as_os_str(),
    ];
    let ended = apart::run(&arguments, LIMIT)?;
    match std::fs::read_to_string(path) {
        Ok(text) if ended.code() == Some(0) => Ok(serde_json::from_str(&text)?),
        _ => anyhow::bail!("{}", ended.why()),
    }
}

/// Median, minimum and maximum of `runs` runs in milliseconds, after `warm` warm-up runs.
fn timed(warm: usize, runs: usize, mut body: impl FnMut() -> Result<()>) -> Result<Value> {
    for _ in 0..warm {
        body()?;
    }
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        gpipe::tch::Cuda::synchronize(0);
        let begin = Instant::now();
        body()?;
        gpipe::tch::Cuda::synchronize(0);
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(json!({
        "median_ms": times[runs / 2],
        "least_ms": times[0],
        "most_ms": times[runs - 1],
        "runs": runs,
    }))
}

fn median(value: &Value) -> f64 {
    value["median_ms"].as_f64().unwrap_or(f64::NAN)
}
