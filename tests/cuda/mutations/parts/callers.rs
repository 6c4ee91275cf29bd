//! The caller's work in its own streams, between the stages' work.

use std::sync::{Arc, Mutex};

use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Optimizer, Pipeline, Sequential,
    optim::AdamW,
    settings::{LossScale, Precision},
};

use super::{GPUS, builder, print};
use crate::simulated;
use crate::support::models;

/// A caller with two streams on each device.
struct Caller([[i64; 2]; 2]);

impl Caller {
    fn new() -> Self {
        Self([0, 1].map(|device| [(); 2].map(|()| simulated::sim_new_stream(device))))
    }

    fn enter(&self, which: usize) {
        for (device, streams) in self.0.iter().enumerate() {
            simulated::sim_enter_stream(device as i32, streams[which]);
        }
    }
}

/// The caller switches streams between operations. It needs no wait, since none of its tensors passes from
/// one of its streams to another.
pub(super) fn streams() {
    let caller = Caller::new();
    uses_outputs(&caller);
    changes_between_steps(&caller);
}

/// A step's outputs are used and freed while the caller uses another stream.
fn uses_outputs(caller: &Caller) {
    let model = models::mlp();
    let mut pipe = builder(&model, &GPUS[..2])
        .micro_batches(1)
        .build()
        .unwrap();
    let x = (model.batch)(8).0;
    let mut used = Vec::new();
    for _ in 0..3 {
        caller.enter(0);
        let outputs = pipe.forward(&x).unwrap();
        caller.enter(1);
        drop(pipe.forward(&x).unwrap());
        caller.enter(0);
        used.push(&outputs * 2.0);
        caller.enter(1);
        drop(outputs);
        drop(pipe.forward(&x).unwrap());
    }
    caller.enter(0);
    print(&[], &used);
}

/// The loss scale and the finite flag stay on the devices from a step to its update and to the next step.
fn changes_between_steps(caller: &Caller) {
    let model = models::transformer(0.1);
    let mut pipe = builder(&model, &GPUS[..2])
        .precision(Precision::Fp16)
        .loss_scale(LossScale {
            initial: 256.0,
            growth_interval: 2,
        })
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let (x, y) = (model.batch)(8);
    let mut reports = Vec::new();
    for step in 0..4 {
        caller.enter(step % 2);
        reports.push(pipe.train_step(&x, &y, model.loss).unwrap());
        caller.enter(1 - step % 2);
        optimizer.step(&mut pipe).unwrap();
        caller.enter(step % 2);
        // Allocates more than all the memory freed meanwhile.
        let more = |number: usize| Tensor::ones([1], (Kind::Float, GPUS[number % 2]));
        drop((0..1024).map(more).collect::<Vec<_>>());
    }
    let losses = reports.iter().map(|report| report.read().unwrap().loss);
    print(&losses.collect::<Vec<_>>(), &[]);
}

/// In a layer, a tensor of the caller on one device reaches another one through page-locked memory: a step
/// starts after all work in the caller's streams.
pub(super) fn by_way_of_the_host() {
    let on_its_way = Arc::new(Mutex::new(Tensor::new()));
    let own = Arc::clone(&on_its_way);
    let reads = move |x: &Tensor| {
        let host = own.lock().unwrap();
        x + host.to_device_(x.device(), Kind::Float, true, false)
    };
    let model = Sequential::new()
        .layer("reads", move |_| nn::func(reads.clone()))
        .layer("two", |p| {
            nn::linear(p, 64, 64, nn::LinearConfig::default())
        });
    let mut pipe = Pipeline::builder(model)
        .devices(&GPUS[..2])
        .micro_batches(2)
        .deterministic(true)
        .build()
        .unwrap();
    let x = Tensor::ones([4, 64], (Kind::Float, Device::Cpu));
    let there = Tensor::ones([64], (Kind::Float, GPUS[1])) * 3.0;
    *on_its_way.lock().unwrap() = there.to_device_(Device::Cpu, Kind::Float, true, false);
    let outputs = pipe.forward(&x).unwrap();
    print(&[], &[outputs]);
}
