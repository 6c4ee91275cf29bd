//! Training runs that can be split into pieces.

use std::path::Path;

use gpipe::checkpoint::{Checkpoint, Checkpointer, Extras};
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Layer, Optimizer, Pipeline, Sequential, Values,
    layers::{self, Context},
    optim::{AdamW, OptimizerKind, Sgd},
};

use crate::support::{batch, cpus, cross_entropy, snapshot};

/// Counts its training micro-batches.
#[derive(Debug)]
struct Counter(Tensor);

impl Counter {
    fn new(path: &nn::Path<'_>) -> Self {
        let mut path = path.clone();
        let count = path.zeros_no_train("count", &[]);
        path.set_kind(Kind::Int64);
        Self(count)
    }
}

impl Layer for Counter {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        if ctx.train() && !ctx.recomputing() {
            let _ = self.0.shallow_clone().f_add_scalar_(1)?;
        }
        Ok(inputs)
    }
}

/// Has everything that a checkpoint stores: tied parameters, statistics, a counter, random layers.
pub(crate) fn model() -> Sequential {
    let linear = |p: &nn::Path<'_>| nn::linear(p, 12, 12, nn::LinearConfig::default());
    Sequential::new()
        .layer("in", linear)
        .layer("norm", |p| layers::BatchNorm::new(p, 12, <_>::default()))
        .layer("drop", |_| layers::Dropout::new(0.3))
        .layer("count", Counter::new)
        .layer("middle", linear)
        .layer("noise", |_| {
            nn::func_t(|x, train| {
                if train {
                    x + x.randn_like() * 0.1
                } else {
                    x.copy()
                }
            })
        })
        .layer("again", linear)
        .layer("head", |p| nn::linear(p, 12, 5, <_>::default()))
        .tie("middle.weight", "again.weight")
}

/// A way to cut and run the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) stages: usize,
    pub(crate) schedule: ScheduleKind,
    pub(crate) seed: u64,
}

pub(crate) const PLAIN: Cut = Cut {
    stages: 1,
    schedule: ScheduleKind::GPipe,
    seed: 7,
};

pub(crate) struct Run {
    pub(crate) pipe: Pipeline,
    pub(crate) optimizer: Optimizer,
}

impl Run {
    pub(crate) fn new(cut: Cut, kind: impl Into<OptimizerKind>) -> Self {
        let pipe = Pipeline::builder(model())
            .devices(&cpus(cut.stages))
            .schedule(cut.schedule)
            .seed(cut.seed)
            .micro_batches(4)
            .threads_per_stage(1)
            .build()
            .unwrap();
        let optimizer = Optimizer::new(kind);
        Self { pipe, optimizer }
    }

    /// A run with a parameter group of another optimizer.
    pub(crate) fn with_groups(cut: Cut) -> Self {
        let mut run = Self::new(cut, adamw());
        run.optimizer = Optimizer::new(adamw()).group(|name| name.ends_with("bias"), momentum());
        run
    }

    /// Returns the loss's bits, and leaves the gradients.
    pub(crate) fn accumulate(&mut self, step: u64) -> u64 {
        let (x, y) = batch(&[10, 12], 10);
        let x = x * (step as f64 * 0.37).cos();
        let report = self.pipe.train_step(&x, &y, cross_entropy).unwrap();
        report.read().unwrap().loss.to_bits()
    }

    pub(crate) fn step(&mut self, step: u64) -> u64 {
        let loss = self.accumulate(step);
        self.optimizer.step(&mut self.pipe).unwrap();
        loss
    }

    pub(crate) fn steps(&mut self, steps: std::ops::RangeInclusive<u64>) -> Vec<u64> {
        steps.map(|step| self.step(step)).collect()
    }

    pub(crate) fn save(&mut self, folder: &Path, step: u64) {
        let mut checkpointer = Checkpointer::new(folder).unwrap();
        checkpointer
            .save(&mut self.pipe, &self.optimizer, Extras::new(step))
            .unwrap();
        let saved = checkpointer.finish().unwrap().unwrap();
        assert_eq!(saved.step, step);
    }

    pub(crate) fn restore(&mut self, folder: &Path) -> Checkpoint {
        let newest = Checkpoint::newest(folder).unwrap();
        newest.restore(&mut self.pipe, &mut self.optimizer).unwrap();
        newest
    }

    pub(crate) fn numbers(&mut self) -> Vec<(String, Tensor)> {
        snapshot(&mut self.pipe)
    }
}

pub(crate) fn adamw() -> AdamW {
    AdamW {
        lr: 0.01,
        weight_decay: 0.1,
        ..AdamW::default()
    }
}

pub(crate) fn momentum() -> Sgd {
    Sgd {
        lr: 0.05,
        momentum: 0.9,
        dampening: 0.1,
        ..Sgd::default()
    }
}

/// A model with few numbers in two stages, for tests that change all bytes.
pub(crate) fn small() -> Run {
    let model = Sequential::new()
        .layer("a", |p| nn::linear(p, 6, 12, <_>::default()))
        .layer("b", |p| nn::linear(p, 12, 10, <_>::default()));
    let pipe = Pipeline::new(model, &cpus(2), 2).unwrap();
    let optimizer = Optimizer::new(adamw());
    let mut run = Run { pipe, optimizer };
    let x = Tensor::ones([4, 6], (Kind::Float, Device::Cpu));
    let y = Tensor::zeros([4], (Kind::Int64, Device::Cpu));
    run.pipe.train_step(&x, &y, cross_entropy).unwrap();
    run.optimizer.step(&mut run.pipe).unwrap();
    run
}
