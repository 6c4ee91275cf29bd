//! Optimizers and their hyperparameters by name.

use std::str::FromStr;

use super::{Adam, AdamW, OptimizerKind, Sgd};

impl OptimizerKind {
    /// The names by which users ask for them.
    pub const NAMES: [&'static str; 3] = ["adamw", "adam", "sgd"];

    /// The name by which users ask for it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AdamW(_) => "adamw",
            Self::Adam(_) => "adam",
            Self::Sgd(_) => "sgd",
        }
    }

    /// Returns a hyperparameter by the name of its field, such as `beta1`; `None` if there is no
    /// such field.
    pub fn number(&self, name: &str) -> Option<f64> {
        let mut own = *self;
        own.slot(name).copied()
    }

    /// Sets one of its numbers by the name of the field; false where it has no such number.
    pub fn set_number(&mut self, name: &str, number: f64) -> bool {
        self.slot(name).map(|slot| *slot = number).is_some()
    }

    fn slot(&mut self, name: &str) -> Option<&mut f64> {
        match self {
            Self::Adam(Adam {
                lr,
                beta1,
                beta2,
                eps,
                weight_decay,
            })
            | Self::AdamW(AdamW {
                lr,
                beta1,
                beta2,
                eps,
                weight_decay,
            }) => match name {
                "lr" => Some(lr),
                "beta1" => Some(beta1),
                "beta2" => Some(beta2),
                "eps" => Some(eps),
                "weight_decay" => Some(weight_decay),
                _ => None,
            },
            Self::Sgd(sgd) => match name {
                "lr" => Some(&mut sgd.lr),
                "momentum" => Some(&mut sgd.momentum),
                "dampening" => Some(&mut sgd.dampening),
                "weight_decay" => Some(&mut sgd.weight_decay),
                _ => None,
            },
        }
    }
}

/// The optimizer of this name with its usual numbers; capitals, as PyTorch has them, count for nothing.
impl FromStr for OptimizerKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.to_ascii_lowercase().as_str() {
            "adamw" => Ok(AdamW::default().into()),
            "adam" => Ok(Adam::default().into()),
            "sgd" => Ok(Sgd::default().into()),
            _ => Err(format!(
                "`{name}` is no optimizer: there are {}",
                Self::NAMES.join(", ")
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_optimizer_has_a_name_and_its_numbers_by_theirs() {
        for name in OptimizerKind::NAMES {
            let mut kind: OptimizerKind = name.parse().unwrap();
            assert_eq!(kind.name(), name);
            assert_eq!(kind.number("lr"), Some(kind.lr()));
            assert!(kind.set_number("weight_decay", 0.5));
            assert_eq!(kind.number("weight_decay"), Some(0.5));
            let has_momentum = kind.set_number("momentum", 0.9);
            assert_eq!(has_momentum, kind.number("beta1").is_none());
            assert!(!kind.set_number("nothing", 0.0));
        }
        assert!("adamx".parse::<OptimizerKind>().is_err());
    }
}
