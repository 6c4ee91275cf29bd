//! Optimizers over a whole pipeline, and their learning rates: the updates with their numbers, parameter groups, and the optimizer state of
//! each parameter.

mod groups;
mod named;
mod optimizer;
mod schedule;
mod state;

pub(crate) use groups::Groups;
pub use optimizer::Optimizer;
pub use schedule::{LrKind, LrSchedule};
pub(crate) use state::{OptimizerState, Parts};

/// Adam (Kingma & Ba 2015), whose weight decay, if any, is that of a squared penalty:
/// part of the gradient, and so of both means. [`AdamW`] decouples the decay from it.
///
/// Both have the same optimizer state: one can resume with the state of the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running mean of gradients.
    pub beta1: f64,
    /// Decay of the running mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Added to the gradient, times the weight.
    pub weight_decay: f64,
}

impl Default for Adam {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
        }
    }
}

/// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running mean of gradients.
    pub beta1: f64,
    /// Decay of the running mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Share of a weight that is taken off per unit of learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.01,
        }
    }
}

/// Stochastic gradient descent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// Share of the former update that is kept.
    pub momentum: f64,
    /// Share of the new gradient that the momentum leaves out.
    pub dampening: f64,
    /// Added to the gradient, times the weight.
    pub weight_decay: f64,
    /// Nesterov's form of momentum.
    pub nesterov: bool,
}

impl Default for Sgd {
    fn default() -> Self {
        Self {
            lr: 1e-2,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
        }
    }
}

/// Kind of update, with its hyperparameters.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum OptimizerKind {
    /// See [`Adam`].
    Adam(Adam),
    /// See [`AdamW`].
    AdamW(AdamW),
    /// See [`Sgd`].
    Sgd(Sgd),
}

impl OptimizerKind {
    /// The learning rate.
    pub fn lr(&self) -> f64 {
        match self {
            Self::Adam(adam) => adam.lr,
            Self::AdamW(adamw) => adamw.lr,
            Self::Sgd(sgd) => sgd.lr,
        }
    }

    /// Sets the learning rate.
    pub fn set_lr(&mut self, lr: f64) {
        match self {
            Self::Adam(adam) => adam.lr = lr,
            Self::AdamW(adamw) => adamw.lr = lr,
            Self::Sgd(sgd) => sgd.lr = lr,
        }
    }
}

impl OptimizerKind {
    /// Checks that the update is defined for all hyperparameters.
    ///
    /// # Errors
    /// The first invalid one, and its allowed values.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Adam(adam) => adam.moments().check("Adam"),
            Self::AdamW(adamw) => adamw.check("AdamW"),
            Self::Sgd(sgd) => sgd.check(),
        }
    }
}

impl Adam {
    /// Converts the hyperparameters: the two updates differ only in how the weight decay is
    /// applied.
    fn moments(&self) -> AdamW {
        AdamW {
            lr: self.lr,
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            weight_decay: self.weight_decay,
        }
    }
}

impl AdamW {
    fn check(&self, update: &str) -> Result<(), String> {
        not_negative(update, "lr", self.lr)?;
        below_one(update, "beta1", self.beta1)?;
        below_one(update, "beta2", self.beta2)?;
        not_negative(update, "eps", self.eps)?;
        not_negative(update, "weight_decay", self.weight_decay)
    }
}

impl Sgd {
    fn check(&self) -> Result<(), String> {
        not_negative("Sgd", "lr", self.lr)?;
        not_negative("Sgd", "momentum", self.momentum)?;
        not_negative("Sgd", "weight_decay", self.weight_decay)?;
        if !self.dampening.is_finite() {
            return wrong("Sgd", "dampening", self.dampening, "a finite number");
        }
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err("Sgd: nesterov needs a momentum above 0 and a dampening of 0".to_owned());
        }
        Ok(())
    }
}

fn not_negative(update: &str, field: &str, number: f64) -> Result<(), String> {
    if number >= 0.0 && number.is_finite() {
        return Ok(());
    }
    wrong(update, field, number, "0 or more, and finite")
}

fn below_one(update: &str, field: &str, number: f64) -> Result<(), String> {
    if (0.0..1.0).contains(&number) {
        return Ok(());
    }
    wrong(update, field, number, "at least 0 and below 1")
}

fn wrong(update: &str, field: &str, number: f64, must: &str) -> Result<(), String> {
    Err(format!("{update}: {field} is {number}, but must be {must}"))
}

impl From<Adam> for OptimizerKind {
    fn from(adam: Adam) -> Self {
        Self::Adam(adam)
    }
}

impl From<AdamW> for OptimizerKind {
    fn from(adamw: AdamW) -> Self {
        Self::AdamW(adamw)
    }
}

impl From<Sgd> for OptimizerKind {
    fn from(sgd: Sgd) -> Self {
        Self::Sgd(sgd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_update_is_defined_for_are_named() {
        let adamw = AdamW::default();
        let sgd = Sgd::default();
        assert_eq!(OptimizerKind::from(adamw).check(), Ok(()));
        assert_eq!(OptimizerKind::from(sgd).check(), Ok(()));
        let adam = Adam::default();
        assert_eq!(OptimizerKind::from(adam).check(), Ok(()));
        let wrong: [(OptimizerKind, &str); 6] = [
            (
                Adam {
                    eps: f64::INFINITY,
                    ..adam
                }
                .into(),
                "Adam: eps is inf",
            ),
            (
                AdamW {
                    lr: f64::NAN,
                    ..adamw
                }
                .into(),
                "AdamW: lr is NaN",
            ),
            (
                AdamW {
                    beta2: 1.0,
                    ..adamw
                }
                .into(),
                "below 1",
            ),
            (
                Sgd { lr: -0.1, ..sgd }.into(),
                "Sgd: lr is -0.1, but must be 0 or more",
            ),
            (
                Sgd {
                    dampening: f64::INFINITY,
                    ..sgd
                }
                .into(),
                "dampening",
            ),
            (
                Sgd {
                    nesterov: true,
                    ..sgd
                }
                .into(),
                "nesterov needs a momentum",
            ),
        ];
        for (kind, expected) in wrong {
            let message = kind.check().unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
