//! A pipeline of layers that fail on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{self, Tensor, nn};
use gpipe::{Error, Layer, Optimizer, Pipeline, Sequential, Values, layers::Context, optim::AdamW};

use crate::support::*;

pub(crate) const MICRO_BATCHES: usize = 4;
pub(crate) const STAGES: usize = 3;
pub(crate) const NEVER: usize = usize::MAX;

/// A layer's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Error,
    Panic,
    /// tch's own panic, from a method without a `Result`.
    TorchPanic,
    /// An output of another shape, which the next layer (or the loss) cannot take.
    Shape,
    /// Overwrites a value that its own backward needs.
    Backward,
}

pub(crate) const FAULTS: [Fault; 5] = [
    Fault::Error,
    Fault::Panic,
    Fault::TorchPanic,
    Fault::Shape,
    Fault::Backward,
];

/// The micro-batch on which the layer fails; [`NEVER`] for none.
pub(crate) type Switch = Arc<AtomicUsize>;

/// A linear layer with a switch, and a count of those alive.
#[derive(Debug)]
struct Brittle {
    linear: nn::Linear,
    switch: Switch,
    fault: Fault,
    alive: Arc<AtomicUsize>,
}

impl Layer for Brittle {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let output = inputs.into_one()?.apply(&self.linear);
        if self.switch.load(Ordering::SeqCst) != ctx.micro().index() {
            return Ok(output.into());
        }
        match self.fault {
            Fault::Error => anyhow::bail!("the layer gives up"),
            Fault::Panic => panic!("the layer panics"),
            Fault::TorchPanic => Ok(output
                .matmul(&Tensor::ones([3, 3], tch::kind::FLOAT_CPU))
                .into()),
            Fault::Shape => Ok(output.narrow(1, 0, 3).into()),
            Fault::Backward => {
                let mut curve = output.exp();
                tch::no_grad(|| {
                    let _ = curve.fill_(2.0);
                });
                Ok(curve.into())
            }
        }
    }
}

impl Drop for Brittle {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One brittle layer per stage, each followed by a batch norm, whose statistics a step updates.
pub(crate) struct Setup {
    pub(crate) pipe: Pipeline,
    optimizer: Optimizer,
    pub(crate) switches: Vec<Switch>,
    pub(crate) alive: Arc<AtomicUsize>,
}

pub(crate) fn setup(fault: Fault, schedule: ScheduleKind) -> Setup {
    let alive = Arc::new(AtomicUsize::new(0));
    let switches: Vec<Switch> = (0..STAGES)
        .map(|_| Arc::new(AtomicUsize::new(NEVER)))
        .collect();
    let mut model = Sequential::new();
    for (stage, switch) in switches.iter().enumerate() {
        let (switch, alive) = (Arc::clone(switch), Arc::clone(&alive));
        let (inputs, outputs) = (if stage == 0 { 12 } else { 8 }, 8);
        model = model
            .layer(format!("brittle{stage}"), move |p| {
                alive.fetch_add(1, Ordering::SeqCst);
                let linear = nn::linear(p, inputs, outputs, nn::LinearConfig::default());
                Brittle {
                    linear,
                    switch: Arc::clone(&switch),
                    fault,
                    alive: Arc::clone(&alive),
                }
            })
            .layer(format!("norm{stage}"), |p| {
                nn::batch_norm1d(p, 8, nn::BatchNormConfig::default())
            });
    }
    let pipe = Pipeline::builder(model)
        .devices(&cpus(STAGES))
        .balance(&[2; STAGES])
        .micro_batches(MICRO_BATCHES)
        .schedule(schedule)
        .threads_per_stage(1)
        .build()
        .unwrap();
    let optimizer = Optimizer::new(AdamW {
        lr: 1e-2,
        ..AdamW::default()
    });
    Setup {
        pipe,
        optimizer,
        switches,
        alive,
    }
}

impl Setup {
    pub(crate) fn good_step(&mut self) -> u64 {
        let (x, y) = mlp_batch(13);
        let loss = self
            .pipe
            .train_step(&x, &y, cross_entropy)
            .unwrap()
            .read()
            .unwrap()
            .loss;
        self.optimizer.step(&mut self.pipe).unwrap();
        loss.to_bits()
    }

    pub(crate) fn bad_step(&mut self, stage: usize, micro: usize) -> Error {
        let (x, y) = mlp_batch(13);
        self.switches[stage].store(micro, Ordering::SeqCst);
        let error = self.pipe.train_step(&x, &y, cross_entropy).unwrap_err();
        self.switches[stage].store(NEVER, Ordering::SeqCst);
        error
    }
}
