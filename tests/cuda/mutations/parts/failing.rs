//! Devices that fail, or never come to an end.

use std::sync::mpsc;
use std::time::Duration;

use gpipe::checkpoint::{Checkpointer, Extras};
use gpipe::partitioner::Bytes;
use gpipe::tch::Tensor;
use gpipe::{Optimizer, Pipeline, optim::AdamW};

use super::{GPUS, builder, print};
use crate::simulated;
use crate::support::models::{self, Model};
use crate::support::snapshot;

/// A step fails while copies are in flight; then the host reads offloaded values.
pub(super) fn undone_and_saved(model: &Model) {
    let mut pipe = builder(model, &GPUS[..2])
        .offload(&[0, 1])
        .offload_at_least(Bytes(1))
        .patience(Duration::from_mins(1))
        .build()
        .unwrap();
    // Each parameter has a window of its own.
    let mut optimizer = Optimizer::new(AdamW::default())
        .offload(true)
        .offload_window(Bytes(1));
    let (x, y) = (model.batch)(8);
    let fails = |_: &Tensor, _: &Tensor| -> anyhow::Result<Tensor> { anyhow::bail!("as asked") };
    let why = pipe.train_step(&x, &y, fails).unwrap_err().to_string();
    assert!(why.contains("as asked"), "{why}");
    pipe.train_step(&x, &y, model.loss).unwrap();
    optimizer.step(&mut pipe).unwrap();
    stopped(&mut pipe, &mut optimizer, model);
    let folder = tempfile::tempdir().unwrap();
    let mut checkpointer = Checkpointer::new(folder.path()).unwrap();
    let saved = checkpointer.save(&mut pipe, &optimizer, Extras::default());
    saved.unwrap();
    checkpointer.finish().unwrap();
}

/// A copy of an update fails while others are in flight; the next call continues it. Then weights are loaded,
/// with patience.
fn stopped(pipe: &mut Pipeline, optimizer: &mut Optimizer, model: &Model) {
    let (x, y) = (model.batch)(8);
    pipe.train_step(&x, &y, model.loss).unwrap();
    simulated::fail("copy", 6);
    let why = optimizer.step(pipe).unwrap_err().to_string();
    assert!(why.contains("update"), "{why}");
    pipe.train_step(&x, &y, model.loss).unwrap();
    let values = snapshot(pipe);
    pipe.load(&values).unwrap();
    let values: Vec<Tensor> = values.into_iter().map(|(_, value)| value).collect();
    print(&[], &values);
}

/// A kernel never ends: loading weights after it must time out.
pub(super) fn stalled() {
    let (said, hears) = mpsc::channel();
    std::thread::spawn(move || {
        let model = models::mlp();
        let patience = Duration::from_secs(1);
        let mut pipe = (builder(&model, &GPUS[..2]).patience(patience).build()).unwrap();
        let (x, y) = (model.batch)(8);
        let values = snapshot(&mut pipe);
        simulated::fail("stall", 1);
        let report = pipe.train_step(&x, &y, model.loss).unwrap();
        said.send(pipe.load(&values).unwrap_err().to_string())
            .unwrap();
        drop(report);
    });
    let why = hears.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(why.contains("told before"), "{why}");
}
