//! How parameters are updated: the optimizer, and its learning rate from step to step.

use std::fmt;
use std::str::FromStr;

use super::recipe::Recipe;
use crate::cli::config::form::One;
use crate::cli::config::{Kind, Value};
use crate::models::zoo::nearest;
use crate::{Adam, AdamW, LrKind, LrSchedule, OptimizerKind, Sgd};

/// Steps of warm-up, in runs that are long enough.
const WARM_UP: usize = 100;

pub(super) const OPTIMIZER: One<OptimizerName> = One {
    kind: Kind::Text,
    parse: |text| text.parse(),
    write: |name| Value::Text(name.to_string()),
};

pub(super) const LR_SCHEDULE: One<LrKind> = One {
    kind: Kind::Text,
    parse: |text| text.parse(),
    write: |kind| Value::Text(kind.to_string()),
};

/// Which optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptimizerName {
    AdamW,
    Adam,
    Sgd,
}

impl OptimizerName {
    const ALL: [Self; 3] = [Self::AdamW, Self::Adam, Self::Sgd];

    fn text(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Adam => "adam",
            Self::Sgd => "sgd",
        }
    }
}

impl fmt::Display for OptimizerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

impl FromStr for OptimizerName {
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

impl Recipe {
    /// The optimizer with its numbers.
    pub(super) fn optimizer_kind(&self) -> OptimizerKind {
        let lr = self.lr;
        match self.optimizer {
            OptimizerName::AdamW => {
                let usual = AdamW::default();
                OptimizerKind::AdamW(AdamW {
                    lr,
                    beta1: self.beta1.unwrap_or(usual.beta1),
                    beta2: self.beta2.unwrap_or(usual.beta2),
                    eps: self.eps.unwrap_or(usual.eps),
                    weight_decay: self.weight_decay.unwrap_or(usual.weight_decay),
                })
            }
            OptimizerName::Adam => {
                let usual = Adam::default();
                OptimizerKind::Adam(Adam {
                    lr,
                    beta1: self.beta1.unwrap_or(usual.beta1),
                    beta2: self.beta2.unwrap_or(usual.beta2),
                    eps: self.eps.unwrap_or(usual.eps),
                    weight_decay: self.weight_decay.unwrap_or(usual.weight_decay),
                })
            }
            OptimizerName::Sgd => {
                let usual = Sgd::default();
                OptimizerKind::Sgd(Sgd {
                    lr,
                    momentum: self.momentum.unwrap_or(usual.momentum),
                    dampening: self.dampening.unwrap_or(usual.dampening),
                    weight_decay: self.weight_decay.unwrap_or(usual.weight_decay),
                    nesterov: self.nesterov.unwrap_or(usual.nesterov),
                })
            }
        }
    }

    /// Steps until the learning rate is where its schedule begins. Models whose head is
    /// tied to the embedding learn far slower without.
    fn warm_up(&self, steps: usize) -> usize {
        let usual = match self.lr_schedule {
            // It rises by itself.
            LrKind::OneCycle => 0,
            _ => WARM_UP.min(steps / 4),
        };
        self.warmup.unwrap_or(usual)
    }

    /// The learning rates of the run.
    ///
    /// # Errors
    /// Numbers that do not fit the schedule, in words.
    pub(super) fn learning_rates(&self) -> Result<LrSchedule, crate::Error> {
        let steps = self.lr_steps.unwrap_or(self.steps);
        let mut schedule = LrSchedule::new(self.lr_schedule, self.lr, Some(steps as u64))?
            .warm_up(self.warm_up(steps) as u64)?;
        if let Some(end) = self.lr_end {
            schedule = schedule.end(end)?;
        }
        if let Some(rise) = self.lr_rise {
            schedule = schedule.rise(rise)?;
        }
        if let Some(timescale) = self.lr_timescale {
            schedule = schedule.timescale(timescale as u64)?;
        }
        Ok(schedule)
    }

    /// The same with nothing left to defaults that could be said of how it updates.
    pub(super) fn with_optimizer_in_full(&self) -> Self {
        let mut own = self.clone();
        match self.optimizer_kind() {
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
            }) => {
                own.weight_decay = Some(weight_decay);
                own.beta1 = Some(beta1);
                own.beta2 = Some(beta2);
                own.eps = Some(eps);
            }
            OptimizerKind::Sgd(sgd) => {
                own.weight_decay = Some(sgd.weight_decay);
                own.momentum = Some(sgd.momentum);
                own.dampening = Some(sgd.dampening);
                own.nesterov = Some(sgd.nesterov);
            }
        }
        let steps = self.lr_steps.unwrap_or(self.steps);
        own.lr_steps = self.lr_schedule.ends().then_some(steps);
        own.warmup = Some(self.warm_up(own.lr_steps.unwrap_or(self.steps)));
        own
    }
}
