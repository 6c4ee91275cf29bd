//! The optimizer state of one parameter.

use tch::{Kind, Tensor};

use crate::error::TorchError;
use crate::optim::OptimizerKind;

/// The optimizer state of one parameter: tensors of its shape and type.
#[doc(alias = "slot variable")]
#[derive(Debug)]
pub(super) enum OptimizerSlot {
    /// The state of Adam and `AdamW`.
    #[doc(alias = "exp_avg")]
    AdamW {
        /// Running mean of gradients, and of their squares.
        mean: Tensor,
        square: Tensor,
        /// The number of updates, as a float on the device, as the kernel takes it.
        steps: Tensor,
    },
    /// SGD's momentum buffer.
    #[doc(alias = "momentum_buffer")]
    Momentum(Tensor),
}

impl OptimizerSlot {
    /// The initial state for this kind of update; none for one without state.
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

    /// Returns whether updates of this kind can continue with this state.
    pub(super) fn serves(&self, kind: &OptimizerKind) -> bool {
        match kind {
            OptimizerKind::Adam(_) | OptimizerKind::AdamW(_) => matches!(self, Self::AdamW { .. }),
            OptimizerKind::Sgd(_) => matches!(self, Self::Momentum(_)),
        }
    }

    /// The tensors that are as large as the parameter.
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
