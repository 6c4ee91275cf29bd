//! Who notices when one of the calls is left out that keep the order of the devices' work?
//!
//! `src/torch/streams/left_out.rs` leaves out the call at one site. Here short runs tell which
//! sites they reach, then run again without each of these: the checks of the simulated devices
//! (src/simulated_cuda/checks) have to stop the run, or its numbers have to be others. With
//! `GPIPE_MUTATIONS=FILE` the table of all sites is written to a file, for the book
//! (`make mutations`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gpipe::data::{Dataset, Made};
use gpipe::partitioner::{Bytes, ScheduleKind};
use gpipe::tch::{Device, Kind, Tensor};
use gpipe::{AdamW, Optimizer, Pipeline, PipelineBuilder};

use crate::harness::{self, Test};
use crate::support::models::{self, Model};
use crate::support::snapshot;

const GPUS: [Device; 3] = [Device::Cuda(0), Device::Cuda(1), Device::Cuda(2)];

/// For one run.
const LIMIT: Duration = Duration::from_mins(2);

/// What is before the numbers of a run.
const NUMBERS: &str = "numbers: ";

/// The runs, each in a process of its own.
pub(crate) const PARTS: [Test; 5] = [
    ("mutations::between_devices", between_devices),
    ("mutations::with_the_host", with_the_host),
    ("mutations::offloaded", offloaded),
    ("mutations::loaded", loaded),
    ("mutations::captured", captured),
];

/// Sites without which nothing goes wrong, by what is called and a part of the line's text, and
/// why.
const EXPLAINED: [(&str, &str, &str); 0] = [];

pub(crate) fn tests() -> Vec<Test> {
    vec![("mutations::every_call_that_is_left_out_is_noticed", all)]
}

fn builder(model: &Model, devices: &[Device]) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(devices)
        .micro_batches(4)
        .schedule(ScheduleKind::OneFOneB)
        .deterministic(true)
        .seed(3)
}

/// Trains, and prints the numbers. The caller makes each batch by work in its own stream, and
/// gives it up at once; it uses what it gets, and gives that up, too.
fn train(mut pipe: Pipeline, mut optimizer: Optimizer, model: &Model, steps: usize) {
    let batch = || {
        let (x, y) = (model.batch)(8);
        let x = if x.is_floating_point() {
            x * 1.0
        } else {
            x + 0
        };
        (x, y + 0)
    };
    let mut reports = Vec::new();
    for _ in 0..steps {
        let (x, y) = batch();
        reports.push(pipe.train_step(&x, &y, model.loss).unwrap());
        drop((x, y));
        pipe.clip_gradients(1.0).unwrap();
        optimizer.step(&mut pipe).unwrap();
    }
    let outputs: Vec<Tensor> = (0..3)
        .map(|_| pipe.forward(&batch().0).unwrap() + 1.0)
        .collect();
    let losses: Vec<f64> = reports
        .iter()
        .map(|report| report.read().unwrap().loss)
        .collect();
    print(&losses, &outputs);
    let values = snapshot(&mut pipe);
    print(
        &[],
        &values
            .into_iter()
            .map(|(_, value)| value)
            .collect::<Vec<_>>(),
    );
}

fn print(numbers: &[f64], tensors: &[Tensor]) {
    let bits: Vec<u64> = numbers.iter().map(|number| number.to_bits()).collect();
    let sums: Vec<u64> = tensors
        .iter()
        .map(|tensor| tensor.abs().sum(Kind::Double).double_value(&[]).to_bits())
        .collect();
    println!("{NUMBERS}{bits:?} {sums:?}");
}

fn between_devices() {
    let model = models::transformer(0.1);
    let pipe = builder(&model, &GPUS).build().unwrap();
    train(pipe, Optimizer::new(AdamW::default()), &model, 3);
    let (x, y) = (model.batch)(8);
    let mut pipe = builder(&model, &GPUS)
        .forbid_host_waits(true)
        .build()
        .unwrap();
    pipe.train_step(&x, &y, model.loss).unwrap();
    // The caller's own tensors are on a device of none of the stages.
    let model = models::tied();
    let pipe = builder(&model, &GPUS[..2]).build().unwrap();
    let mut there = model;
    there.batch = |size| {
        let (x, y) = (models::tied().batch)(size);
        (x.to_device(GPUS[2]), y.to_device(GPUS[2]))
    };
    train(pipe, Optimizer::new(AdamW::default()), &there, 2);
}

fn with_the_host() {
    let model = models::mlp();
    let devices = [GPUS[0], Device::Cpu, GPUS[0]];
    let pipe = builder(&model, &devices).build().unwrap();
    train(pipe, Optimizer::new(AdamW::default()), &model, 3);
    let pipe = builder(&model, &[Device::Cpu, GPUS[0]]).build().unwrap();
    let mut there = model;
    there.batch = |size| {
        let (x, y) = (models::mlp().batch)(size);
        (x.to_device(GPUS[1]), y.to_device(GPUS[1]))
    };
    train(pipe, Optimizer::new(AdamW::default()), &there, 2);
}

fn offloaded() {
    let model = models::transformer(0.1);
    for schedule in [ScheduleKind::GPipe, ScheduleKind::OneFOneB] {
        let pipe = builder(&model, &GPUS[..2])
            .schedule(schedule)
            .offload(&[0, 1])
            .offload_at_least(Bytes(1))
            .build()
            .unwrap();
        let optimizer = Optimizer::new(AdamW::default()).offload(true);
        train(pipe, optimizer, &model, 3);
    }
}

fn loaded() {
    let model = models::mlp();
    let items = Made::new(32, |_| {
        let (x, y) = (models::mlp().batch)(1);
        Ok((x.squeeze_dim(0), y.squeeze_dim(0)))
    });
    let batches = Dataset::new(items).batch(8).workers(2).to(GPUS[0]);
    let mut pipe = builder(&model, &[GPUS[0]; 2]).build().unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let mut losses = Vec::new();
    for batch in batches.load().unwrap() {
        let (x, y) = batch.unwrap();
        // Used by the caller alone.
        let scaled = &x * 1.0;
        drop(x);
        let report = pipe.train_step(&scaled, &y, model.loss).unwrap();
        drop((scaled, y));
        optimizer.step(&mut pipe).unwrap();
        losses.push(report);
    }
    let losses = losses.iter().map(|report| report.read().unwrap().loss);
    print(&losses.collect::<Vec<_>>(), &[]);
}

fn captured() {
    let model = models::mlp();
    let pipe = builder(&model, &[GPUS[0]; 4])
        .cuda_graphs(true)
        .build()
        .unwrap();
    train(pipe, Optimizer::new(AdamW::default()), &model, 6);
}

/// How a run ended, in the table's words.
#[derive(PartialEq, Eq)]
enum Ended {
    Well { numbers: String },
    Noticed(&'static str),
}

/// Runs a part with an environment variable of `left_out.rs`.
fn run(part: &str, variable: &str, value: &str) -> (Ended, String) {
    let mut output = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--one", part])
        .env(variable, value)
        .stdin(Stdio::null())
        .stdout(output.reopen().unwrap())
        .stderr(output.reopen().unwrap())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    std::io::Read::read_to_string(&mut output, &mut text).unwrap();
    let numbers = text.lines().filter(|line| line.starts_with(NUMBERS));
    let numbers = numbers.collect::<Vec<_>>().join("\n");
    let ended = match status {
        _ if text.contains("simulated GPU check: the host") => Ended::Noticed("checks: the host"),
        _ if text.contains("neither waits") => Ended::Noticed("checks: order"),
        _ if text.contains("simulated GPU check") => Ended::Noticed("checks"),
        None => Ended::Noticed("it hangs"),
        Some(status) if !status.success() => Ended::Noticed("an error"),
        Some(_) => Ended::Well { numbers },
    };
    (ended, text)
}

/// What the parts do with nothing left out: their numbers, and by site the parts that reach it.
fn reached() -> (
    BTreeMap<&'static str, String>,
    BTreeMap<String, Vec<&'static str>>,
) {
    let mut plain = BTreeMap::new();
    let mut sites: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (part, _) in PARTS {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (ended, text) = run(part, "GPIPE_SITES", file.path().to_str().unwrap());
        let Ended::Well { numbers } = ended else {
            panic!("{part} does not go well by itself:\n{text}");
        };
        plain.insert(part, numbers);
        for site in std::fs::read_to_string(file.path()).unwrap().lines() {
            sites.entry(site.to_owned()).or_default().push(part);
        }
    }
    (plain, sites)
}

/// The first part that notices that a site is left out, and how.
fn noticed(
    site: &str,
    parts: &[&'static str],
    plain: &BTreeMap<&str, String>,
) -> Option<(&'static str, &'static str)> {
    parts.iter().find_map(|part| {
        let (ended, _) = run(part, "GPIPE_LEAVE_OUT", site);
        match ended {
            Ended::Noticed(how) => Some((*part, how)),
            Ended::Well { numbers } if numbers != plain[part] => Some((*part, "other numbers")),
            Ended::Well { .. } => None,
        }
    })
}

/// The line of a site.
fn line_of(site: &str) -> Option<String> {
    let (_, place) = site.split_once(" src/")?;
    let (file, line) = place.rsplit_once(':')?;
    let path = format!("{}/src/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().nth(line.parse::<usize>().ok()? - 1)?;
    Some(line.trim().to_owned())
}

fn explained(site: &str) -> Option<&'static str> {
    let line = line_of(site)?;
    let found = EXPLAINED
        .iter()
        .find(|(what, part, _)| site.starts_with(what) && line.contains(part));
    found.map(|(_, _, why)| *why)
}

fn all() {
    let Ok(path) = std::env::var("GPIPE_MUTATIONS") else {
        return harness::skip("it takes long: `make mutations` runs it");
    };
    let (plain, sites) = reached();
    assert!(sites.len() > 40, "{sites:?}");
    let work = Mutex::new(sites.into_iter());
    let rows = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = work.lock().unwrap().next();
                    let Some((site, parts)) = next else { break };
                    let how = noticed(&site, &parts, &plain);
                    rows.lock().unwrap().insert(site, how);
                }
            });
        }
    });
    let rows = rows.into_inner().unwrap();
    let table = table(&rows);
    std::fs::write(path, &table).unwrap();
    let missed: Vec<_> = rows
        .iter()
        .filter(|(site, how)| how.is_none() && explained(site).is_none())
        .map(|(site, _)| site)
        .collect();
    assert!(missed.is_empty(), "nobody notices {missed:#?}\n{table}");
}

fn table(rows: &BTreeMap<String, Option<(&str, &str)>>) -> String {
    let mut table = "| left out | where | noticed by |\n|---|---|---|\n".to_owned();
    for (site, how) in rows {
        let (what, place) = site.split_once(" src/").unwrap_or((site, ""));
        let file = place.rsplit_once(':').map_or(place, |(file, _)| file);
        let line = line_of(site).unwrap_or_default();
        let how = match how {
            Some((part, how)) => format!("{how} ({})", part.trim_start_matches("mutations::")),
            None => explained(site).map_or("nobody".to_owned(), |why| format!("nobody: {why}")),
        };
        let _ = writeln!(table, "| {what} | `src/{file}`: `{line}` | {how} |");
    }
    table
}
