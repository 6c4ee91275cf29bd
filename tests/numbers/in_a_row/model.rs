//! A model whose layers fail as their batch says, and the results of its steps.

use gpipe::partitioner::{ActionKind, ScheduleKind};
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Error, Layer, Optimizer, Pipeline, Sequential, Values,
    error::NonFinite,
    layers::{self, Context},
    optim::{AdamW, Sgd},
    report::{StepInARow, StepNumbers, StepsInARow},
    settings::{LossScale, Precision},
};

use crate::support::*;

pub(super) const LAYERS: usize = 4;
const WIDTH: i64 = 6;

/// The fault that a batch's marker triggers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    Error,
    Panic,
    Nan,
    /// Beyond the range of half precision.
    Huge,
    /// Overwrites a value that its own backward needs.
    Backward,
}

pub(super) const FAULTS: [Fault; 5] = [
    Fault::Error,
    Fault::Panic,
    Fault::Nan,
    Fault::Huge,
    Fault::Backward,
];

impl Fault {
    /// The fraction of the marker: exact in half precision.
    fn fraction(self) -> f64 {
        match self {
            Self::Error => 0.125,
            Self::Panic => 0.25,
            Self::Nan => 0.375,
            Self::Huge => 0.5,
            Self::Backward => 0.625,
        }
    }
}

/// A linear layer that passes on the first feature, the marker: a layer number and its fault.
#[derive(Debug)]
struct Marked {
    linear: nn::Linear,
    /// Present in every second layer: statistics that steps update.
    norm: Option<layers::BatchNorm>,
    number: usize,
}

impl Layer for Marked {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let x = inputs.into_one()?;
        let (marker, rest) = (x.narrow(1, 0, 1), x.narrow(1, 1, WIDTH));
        let mut rest = ctx.dropout(&rest.apply(&self.linear).tanh(), 0.1)?;
        if let Some(norm) = &self.norm {
            rest = norm.forward(rest.into(), ctx)?.into_one()?;
        }
        let told = marker.abs().max().double_value(&[]) - self.number as f64;
        let fault = FAULTS.into_iter().find(|fault| fault.fraction() == told);
        match fault {
            None => {}
            Some(Fault::Error) => anyhow::bail!("layer {} gives up", self.number),
            Some(Fault::Panic) => panic!("layer {} panics", self.number),
            Some(Fault::Nan) => rest = &rest * f64::NAN,
            Some(Fault::Huge) => rest = &rest * 60000.0,
            Some(Fault::Backward) => {
                rest = rest.exp();
                let _ = gpipe::tch::no_grad(|| rest.fill_(2.0));
            }
        }
        Ok(Tensor::cat(&[marker.to_kind(rest.kind()), rest], 1).into())
    }
}

fn model() -> Sequential {
    let marked = |number: usize| {
        move |p: &nn::Path<'_>| Marked {
            linear: nn::linear(p / "linear", WIDTH, WIDTH, nn::LinearConfig::default()),
            norm: number.is_multiple_of(2).then(|| {
                layers::BatchNorm::new(&(p / "norm"), WIDTH, nn::BatchNormConfig::default())
            }),
            number,
        }
    };
    let mut model = Sequential::new();
    for number in 1..=LAYERS {
        model = model.layer(format!("marked{number}"), marked(number));
    }
    // The norm of a plain model has buffers that every micro-batch updates.
    let model = model.layer("plain", |p| {
        nn::batch_norm1d(p, 1 + WIDTH, nn::BatchNormConfig::default())
    });
    model.layer("head", |p| {
        nn::linear(p, 1 + WIDTH, 3, nn::LinearConfig::default())
    })
}

/// All choices of a test case.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) kind: ScheduleKind,
    pub(super) devices: usize,
    pub(super) chunks: usize,
    pub(super) micro_batches: usize,
    pub(super) precision: Precision,
    /// The initial loss scale, as a power of two.
    pub(super) scale: i32,
    pub(super) non_finite: NonFinite,
    pub(super) max_norm: Option<f64>,
    pub(super) momentum: bool,
    pub(super) rates: bool,
    /// For each step: samples, and a layer's fault.
    pub(super) batches: Vec<(i64, Option<(usize, Fault)>)>,
    /// Steps of the first call.
    pub(super) first: usize,
}

/// Results of a step, to the bit.
#[derive(Debug, PartialEq)]
pub(super) struct Told {
    loss: u64,
    norm: Option<u64>,
    non_finite: Option<String>,
    scale: Option<u64>,
    /// Forwards in the timeline.
    forwards: usize,
}

fn forwards(numbers: &StepNumbers) -> usize {
    let all = numbers.timeline.spans().iter();
    all.filter(|span| span.action.kind == ActionKind::Forward)
        .count()
}

/// Results of all steps.
#[derive(Debug, Default)]
pub(super) struct Came {
    pub(super) told: Vec<Told>,
    /// Whether each step had a barrier.
    pub(super) barriers: Vec<bool>,
    pub(super) error: Option<String>,
}

impl Case {
    pub(super) fn pipe(&self) -> Result<Pipeline, Error> {
        single_threaded();
        Pipeline::builder(model())
            .devices(&cpus(self.devices))
            .chunks(self.chunks)
            .micro_batches(self.micro_batches)
            .schedule(self.kind)
            .precision(self.precision)
            .loss_scale(LossScale {
                initial: 2f64.powi(self.scale),
                growth_interval: 3,
            })
            .on_non_finite(self.non_finite)
            .threads_per_stage(1)
            .seed(5)
            .build()
    }

    pub(super) fn optimizer(&self) -> Optimizer {
        if self.momentum {
            return Optimizer::new(Sgd {
                lr: 0.05,
                momentum: 0.9,
                ..Sgd::default()
            });
        }
        Optimizer::new(AdamW {
            lr: 0.01,
            ..AdamW::default()
        })
    }

    pub(super) fn batch(&self, step: usize) -> (Tensor, Tensor) {
        let (samples, fault) = self.batches[step];
        let float = (Kind::Float, Device::Cpu);
        let x = Tensor::arange(samples * (1 + WIDTH), float) * (0.7 + 0.1 * step as f64);
        let x = x.sin().view([samples, 1 + WIDTH]);
        let code = fault.map_or(0.0, |(layer, fault)| layer as f64 + fault.fraction());
        // In one of the micro-batches.
        let mut marker = x.narrow(1, 0, 1);
        let _ = marker.fill_(0.0);
        let _ = marker.narrow(0, step as i64 % samples, 1).fill_(code);
        let y = Tensor::arange(samples, (Kind::Int64, Device::Cpu)) + step as i64;
        (x, y.remainder(3))
    }

    fn rate(step: usize) -> f64 {
        0.02 / (1.0 + step as f64)
    }

    fn told(&self, step: &StepInARow) -> Told {
        let numbers = step.report.read().unwrap();
        let norm = step
            .grad_norm
            .as_ref()
            .map(|norm| norm.read().unwrap().to_bits());
        assert_eq!(norm.is_some(), self.max_norm.is_some());
        Told {
            loss: numbers.loss.to_bits(),
            norm,
            non_finite: numbers.non_finite.clone(),
            scale: numbers.loss_scale.map(f64::to_bits),
            forwards: forwards(numbers),
        }
    }

    /// Runs steps with barriers, as a caller does.
    pub(super) fn with_barriers(&self, pipe: &mut Pipeline, optimizer: &mut Optimizer) -> Came {
        let mut came = Came::default();
        for step in 0..self.batches.len() {
            let mut one = || -> Result<Told, Error> {
                let (x, y) = self.batch(step);
                let report = pipe.train_step(x, y, cross_entropy)?;
                let norm = self.max_norm.map(|limit| pipe.clip_grad_norm(limit));
                let norm = norm.transpose()?;
                if self.rates {
                    optimizer.set_lr(Self::rate(step));
                }
                optimizer.step(pipe)?;
                let numbers = report.read()?;
                Ok(Told {
                    loss: numbers.loss.to_bits(),
                    norm: norm.map(f64::to_bits),
                    non_finite: numbers.non_finite.clone(),
                    scale: numbers.loss_scale.map(f64::to_bits),
                    forwards: forwards(numbers),
                })
            };
            match one() {
                Ok(told) => came.told.push(told),
                Err(error) => {
                    came.error = Some(error.to_string());
                    break;
                }
            }
        }
        came
    }

    /// Runs the same steps in two calls.
    pub(super) fn in_a_row(&self, pipe: &mut Pipeline, optimizer: &mut Optimizer) -> Came {
        let mut came = Came::default();
        for (begin, end) in [(0, self.first), (self.first, self.batches.len())] {
            let mut steps = StepsInARow::default();
            if let Some(limit) = self.max_norm {
                steps = steps.max_norm(limit);
            }
            if self.rates {
                steps = steps.learning_rates(move |step| Self::rate(begin + step));
            }
            let batches = (begin..end).map(|step| self.batch(step));
            let each = |step: StepInARow| {
                came.told.push(self.told(&step));
                came.barriers.push(step.barrier);
            };
            let done = pipe.train_steps(optimizer, batches, cross_entropy, &steps, each);
            if let Err(error) = done {
                came.error = Some(error.to_string());
                break;
            }
        }
        came
    }
}
