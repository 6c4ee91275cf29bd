//! Tests of pipelines over processes, saved by some and resumed by others, with the same bits.

use std::path::Path;
use std::sync::Arc;

use tch::nn::{self, LinearConfig};
use tch::{Device, Kind, Tensor};

use super::super::{Checkpoint, Checkpointer, Extras, Needs};
use gpipe_torch::testing::ranks;
use gpipe_torch::world::World;
use gpipe_torch::{AdamW, Optimizer, Pipeline, PipelineBuilder, Sequential};

const STEPS: u64 = 3;

fn builder() -> PipelineBuilder {
    let linear = |p: &nn::Path<'_>| nn::linear(p, 8, 8, LinearConfig::default());
    let model = Sequential::new()
        .layer("one", linear)
        .layer("two", linear)
        .layer("three", linear)
        .layer("four", linear)
        .layer("five", linear);
    Pipeline::builder(model)
        .micro_batches(4)
        .threads_per_stage(1)
        .seed(5)
}

/// A pipeline with so many devices in this process.
fn over(world: &Arc<World>, devices: usize) -> Pipeline {
    let devices = vec![Device::Cpu; devices];
    builder().devices(&devices).world(world).build().unwrap()
}

/// Trains the step of this number, and returns its loss.
fn train(pipe: &mut Pipeline, optimizer: &mut Optimizer, step: u64) -> u64 {
    let x = Tensor::full([8, 8], 0.1 * step as f64, (Kind::Float, Device::Cpu));
    let y = Tensor::ones([8, 8], (Kind::Float, Device::Cpu));
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, tch::Reduction::Sum);
    let loss = pipe.train_step(&x, &y, loss).unwrap().read().unwrap().loss;
    optimizer.step(pipe).unwrap();
    loss.to_bits()
}

/// Trains and saves. *Returns* the loss of the next step.
fn saves(pipe: &mut Pipeline, mut checkpointer: Checkpointer) -> u64 {
    let mut optimizer = Optimizer::new(AdamW::default());
    for step in 1..=STEPS {
        train(pipe, &mut optimizer, step);
        let extras = Extras::new(step);
        checkpointer.save(pipe, &optimizer, extras).unwrap();
    }
    assert_eq!(checkpointer.finish().unwrap().unwrap().step, STEPS);
    train(pipe, &mut optimizer, STEPS + 1)
}

/// Resumes. *Returns* the loss of the next step.
fn resumes(pipe: &mut Pipeline, from: &Checkpoint) -> u64 {
    let mut optimizer = Optimizer::new(AdamW::default());
    assert_eq!(from.extras().step, STEPS);
    from.restore(pipe, &mut optimizer).unwrap();
    train(pipe, &mut optimizer, STEPS + 1)
}

fn left(world: Arc<World>) {
    Arc::into_inner(world).unwrap().leave().unwrap();
}

/// Saves in ranks with these numbers of devices.
fn saved_over(devices: &'static [usize], folder: &Path) -> Vec<u64> {
    let folder = folder.to_owned();
    ranks(devices.len(), move |world| {
        let world = Arc::new(world);
        let mut pipe = over(&world, devices[world.rank()]);
        let checkpointer = Checkpointer::in_world(&folder, &world).unwrap();
        let loss = saves(&mut pipe, checkpointer);
        drop(pipe);
        left(world);
        loss
    })
}

fn resumed_over(devices: &'static [usize], folder: &Path) -> Vec<u64> {
    let folder = folder.to_owned();
    ranks(devices.len(), move |world| {
        let world = Arc::new(world);
        let mut pipe = over(&world, devices[world.rank()]);
        let needs = Needs::of(&mut pipe).unwrap();
        let from = Checkpoint::newest_in_world(&folder, &world, needs).unwrap();
        let loss = resumes(&mut pipe, &from);
        drop((pipe, from));
        left(world);
        loss
    })
}

#[test]
fn what_some_processes_saved_any_others_go_on_with() {
    let alone = tempfile::tempdir().unwrap();
    let mut pipe = builder().devices(&[Device::Cpu; 2]).build().unwrap();
    let expected = saves(&mut pipe, Checkpointer::new(alone.path()).unwrap());
    let three = tempfile::tempdir().unwrap();
    assert_eq!(saved_over(&[2, 1, 1], three.path()), [expected; 3]);
    for folder in [alone.path(), three.path()] {
        let mut pipe = builder().build().unwrap();
        let newest = Checkpoint::newest(folder).unwrap();
        assert_eq!(resumes(&mut pipe, &newest), expected);
        assert_eq!(resumed_over(&[1, 2], folder), [expected; 2]);
    }
}
