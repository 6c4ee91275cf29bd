//! What an optimizer remembers of one parameter.

use tch::{Kind, Tensor};

use crate::torch::error::TorchError;
use crate::torch::optim::OptimizerKind;

/// What is remembered of one parameter, of its shape and type.
#[derive(Debug)]
pub(super) enum OptimizerSlot {
    /// Of Adam and `AdamW`.
    AdamW {
        /// Running mean of gradients, and of their squares.
        mean: Tensor,
        square: Tensor,
        /// Number of updates, as the kernel wants it: a float on the device.
        steps: Tensor,
    },
    /// SGD's momentum buffer.
    Momentum(Tensor),
}

impl OptimizerSlot {
    /// What updates of this kind remember before the first; none where they remember
    /// nothing.
    pub(super) fn new(
        kind: &OptimizerKind,
        parameter: &Tensor,
    ) -> Result<Option<Self>, TorchError> {
        let zeros = || tch::no_grad(|| parameter.f_zeros_like());
        Ok(match kind {
            OptimizerKind::Adam(_) | OptimizerKind::AdamW(_) => Some(Self::AdamW {
                mean: zeros()?,
                square: zeros()?,
                steps: Tensor::f_zeros([], (Kind::Float, parameter.device()))?,
            }),
            OptimizerKind::Sgd(sgd) if sgd.momentum != 0.0 => Some(Self::Momentum(zeros()?)),
            OptimizerKind::Sgd(_) => None,
        })
    }

    /// Whether updates of this kind go on with it.
    pub(super) fn serves(&self, kind: &OptimizerKind) -> bool {
        match kind {
            OptimizerKind::Adam(_) | OptimizerKind::AdamW(_) => matches!(self, Self::AdamW { .. }),
            OptimizerKind::Sgd(_) => matches!(self, Self::Momentum(_)),
        }
    }

    /// What is as large as the parameter.
    pub(super) fn moments(&self) -> Vec<&Tensor> {
        match self {
            Self::AdamW { mean, square, .. } => vec![mean, square],
            Self::Momentum(buffer) => vec![buffer],
        }
    }

    pub(super) fn moments_mut(&mut self) -> Vec<&mut Tensor> {
        match self {
            Self::AdamW { mean, square, .. } => vec![mean, square],
            Self::Momentum(buffer) => vec![buffer],
        }
    }
}
