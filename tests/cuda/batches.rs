//! A loader's batches arrive during the steps, as the timeline of simulated devices shows.

use std::fs;
use std::ops::Range;

use gpipe::data::{Dataset, Made};
use gpipe::tch::{Device, Kind, Reduction, Tensor, nn};
use gpipe::{Optimizer, Pipeline, Sequential, optim::Sgd};
use serde_json::Value;

use crate::apart;
use crate::harness::{LIMIT, Test, note};

pub(crate) fn tests() -> Vec<Test> {
    vec![("batches::are_copied_beside_the_steps", beside_the_steps)]
}

/// Parts that [`beside_the_steps`] runs.
pub(crate) const PARTS: [Test; 1] = [("batches::trains_on_copies", training)];

const GPU: Device = Device::Cuda(0);
const WIDTH: i64 = 1024;
const BATCH: usize = 256;
const STEPS: usize = 12;
/// A device on which a batch takes 10 ms to arrive and a step some 70 ms: long compared with the host's work.
const DEVICE: &str = "host_bandwidth=1e8\nf32=1e11\n";

fn training() {
    let layers = (0..4).fold(Sequential::new(), |own, number| {
        let name = format!("layer{number}");
        own.layer(&name, |p| {
            nn::linear(p, WIDTH, WIDTH, nn::LinearConfig::default())
        })
    });
    let mut pipe = Pipeline::new(layers, &[GPU], 2).unwrap();
    let mut optimizer = Optimizer::new(Sgd::default());
    let items = Made::new(BATCH * STEPS, |_| {
        Ok(Tensor::zeros([WIDTH], (Kind::Float, Device::Cpu)))
    });
    let batches = Dataset::new(items).batch(BATCH).prefetch(2).to(GPU);
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
    for batch in batches.load().unwrap() {
        let x = batch.unwrap();
        let report = pipe.train_step(&x, &x, loss).unwrap();
        drop(x);
        optimizer.step(&mut pipe).unwrap();
        report.read().unwrap();
    }
}

/// When a unit of the device was busy, in microseconds.
fn ran(trace: &Value, unit: &str) -> Vec<Range<f64>> {
    let events = trace["traceEvents"].as_array().unwrap();
    let own = events.iter().filter(|event| event["tid"] == unit);
    let ran = own.map(|event| {
        let begin = event["ts"].as_f64().unwrap();
        begin..begin + event["dur"].as_f64().unwrap()
    });
    ran.collect()
}

fn beside_the_steps() {
    let folder = tempfile::tempdir().unwrap();
    let (device, trace) = (
        folder.path().join("device"),
        folder.path().join("trace.json"),
    );
    fs::write(&device, DEVICE).unwrap();
    let simulated = format!("1,time={},trace={}", device.display(), trace.display());
    let ended = apart::run_on(Some(&simulated), &["--one", PARTS[0].0], LIMIT).unwrap();
    assert_eq!(ended.code(), Some(0), "{}", ended.why());
    let trace: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
    // A batch has a megabyte, other copies from the host far less.
    let mut copies = ran(&trace, "from the host");
    copies.retain(|own| own.end - own.start > 5_000.0);
    assert!(copies.len() >= STEPS, "{} copies", copies.len());
    let kernels = ran(&trace, "kernels");
    let beside = |copy: &Range<f64>| {
        let shared = kernels
            .iter()
            .map(|own| (own.end.min(copy.end) - own.start.max(copy.start)).max(0.0));
        shared.sum::<f64>() / (copy.end - copy.start)
    };
    // The weights and the first batches arrive before anything can run.
    let last = &copies[copies.len() - STEPS + 3..];
    let share = last.iter().map(beside).sum::<f64>() / last.len() as f64;
    note("share of the copies' time in which kernels ran", share);
    assert!(share > 0.5, "{share} of {copies:?} beside {kernels:?}");
}
