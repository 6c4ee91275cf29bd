//! How parameters are updated: the optimizer, and its learning rate from step to step.

use std::fmt;
use std::str::FromStr;

use super::values::{positive, steps};
use crate::models::zoo::nearest;
use crate::{Adam, AdamW, LrKind, LrSchedule, OptimizerKind, Sgd};

/// Steps of warm-up, in runs that are long enough.
const WARM_UP: usize = 100;

/// The part of a recipe that is about updates.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct OptimizerOptions {
    /// Optimizer: adamw, adam or sgd. Its other numbers are keys of the configuration.
    #[arg(long, value_name = "NAME", default_value = "adamw")]
    pub(super) optimizer: Name,
    /// Learning rate: the highest of the schedule.
    #[arg(long, value_name = "RATE", default_value = "0.003", allow_negative_numbers = true, value_parser = positive)]
    pub(super) lr: f64,
    /// How the learning rate goes after the warm-up: constant, linear, cosine, one-cycle
    /// or inverse-sqrt.
    #[arg(long, value_name = "NAME", default_value = "constant", value_parser = LrKind::from_str)]
    pub(super) lr_schedule: LrKind,
    /// Steps over which the learning rate rises in a line to where its schedule begins; by
    /// default a quarter of --steps, at most 100, and none for one-cycle.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = steps)]
    pub(super) warmup: Option<usize>,
    /// Of the optimizer.
    #[arg(skip)]
    pub(super) numbers: Numbers,
    /// Of the schedule.
    #[arg(skip)]
    pub(super) course: Course,
}

/// Which optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    AdamW,
    Adam,
    Sgd,
}

impl Name {
    const ALL: [Self; 3] = [Self::AdamW, Self::Adam, Self::Sgd];

    fn text(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Adam => "adam",
            Self::Sgd => "sgd",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |name: &Self| name.text() == text.trim();
        Self::ALL.into_iter().find(named).ok_or_else(|| {
            let names = Self::ALL.map(|name| name.text().to_owned());
            format!(
                "`{text}` is no optimizer: did you mean `{}`? There are {}",
                nearest(text, &names),
                names.join(", ")
            )
        })
    }
}

/// Numbers of optimizers; of each, those that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Numbers {
    pub(super) weight_decay: Option<f64>,
    pub(super) beta1: Option<f64>,
    pub(super) beta2: Option<f64>,
    pub(super) eps: Option<f64>,
    pub(super) momentum: Option<f64>,
    pub(super) dampening: Option<f64>,
    pub(super) nesterov: Option<bool>,
}

/// Numbers of schedules; of each, those that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Course {
    pub(super) steps: Option<usize>,
    pub(super) end: Option<f64>,
    pub(super) rise: Option<f64>,
    pub(super) timescale: Option<usize>,
}

impl OptimizerOptions {
    /// The optimizer with its numbers.
    pub(super) fn kind(&self) -> OptimizerKind {
        let (lr, own) = (self.lr, self.numbers);
        match self.optimizer {
            Name::AdamW => {
                let usual = AdamW::default();
                OptimizerKind::AdamW(AdamW {
                    lr,
                    beta1: own.beta1.unwrap_or(usual.beta1),
                    beta2: own.beta2.unwrap_or(usual.beta2),
                    eps: own.eps.unwrap_or(usual.eps),
                    weight_decay: own.weight_decay.unwrap_or(usual.weight_decay),
                })
            }
            Name::Adam => {
                let usual = Adam::default();
                OptimizerKind::Adam(Adam {
                    lr,
                    beta1: own.beta1.unwrap_or(usual.beta1),
                    beta2: own.beta2.unwrap_or(usual.beta2),
                    eps: own.eps.unwrap_or(usual.eps),
                    weight_decay: own.weight_decay.unwrap_or(usual.weight_decay),
                })
            }
            Name::Sgd => {
                let usual = Sgd::default();
                OptimizerKind::Sgd(Sgd {
                    lr,
                    momentum: own.momentum.unwrap_or(usual.momentum),
                    dampening: own.dampening.unwrap_or(usual.dampening),
                    weight_decay: own.weight_decay.unwrap_or(usual.weight_decay),
                    nesterov: own.nesterov.unwrap_or(usual.nesterov),
                })
            }
        }
    }

    /// Steps until the learning rate is where its schedule begins. Models whose head is
    /// tied to the embedding learn far slower without.
    pub(super) fn warmup(&self, steps: usize) -> usize {
        let usual = match self.lr_schedule {
            // It rises by itself.
            LrKind::OneCycle => 0,
            _ => WARM_UP.min(steps / 4),
        };
        self.warmup.unwrap_or(usual)
    }

    /// The learning rates of a run of `steps`.
    ///
    /// # Errors
    /// Numbers that do not fit the schedule, in words.
    pub(super) fn schedule(&self, steps: usize) -> Result<LrSchedule, crate::Error> {
        let (kind, own) = (self.lr_schedule, self.course);
        let steps = own.steps.unwrap_or(steps);
        let mut schedule = LrSchedule::new(kind, self.lr, Some(steps as u64))?
            .warm_up(self.warmup(steps) as u64)?;
        if let Some(end) = own.end {
            schedule = schedule.end(end)?;
        }
        if let Some(rise) = own.rise {
            schedule = schedule.rise(rise)?;
        }
        if let Some(timescale) = own.timescale {
            schedule = schedule.timescale(timescale as u64)?;
        }
        Ok(schedule)
    }

    /// What it comes to, with nothing left to defaults that could be said.
    pub(super) fn resolved(&self, steps: usize) -> Self {
        let numbers = match self.kind() {
            OptimizerKind::Adam(Adam {
                beta1,
                beta2,
                eps,
                weight_decay,
                ..
            })
            | OptimizerKind::AdamW(AdamW {
                beta1,
                beta2,
                eps,
                weight_decay,
                ..
            }) => Numbers {
                weight_decay: Some(weight_decay),
                beta1: Some(beta1),
                beta2: Some(beta2),
                eps: Some(eps),
                ..Numbers::default()
            },
            OptimizerKind::Sgd(sgd) => Numbers {
                weight_decay: Some(sgd.weight_decay),
                momentum: Some(sgd.momentum),
                dampening: Some(sgd.dampening),
                nesterov: Some(sgd.nesterov),
                ..Numbers::default()
            },
        };
        let ends = self.lr_schedule.ends();
        let course = Course {
            steps: ends.then(|| self.course.steps.unwrap_or(steps)),
            ..self.course
        };
        Self {
            warmup: Some(self.warmup(course.steps.unwrap_or(steps))),
            numbers,
            course,
            ..self.clone()
        }
    }
}
