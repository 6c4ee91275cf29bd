//! What one step asks of every stage.

use std::fmt;
use std::sync::Arc;

use super::loss::LossFn;

/// What becomes of a step in which a number is not finite (NaN or infinity).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NonFinite {
    /// It is a step like any other; nobody looks.
    #[default]
    Allow,
    /// Loss and gradients are looked at when the step is over. If one is not finite
    /// the step is undone (gradients and buffers are what they were before) and its
    /// report says so.
    Skip,
    /// Outputs of layers, losses and gradients are looked at as they are made. The
    /// first that is not finite fails the step with an error that names the stage,
    /// layer, micro-batch and action. Slow: for finding out.
    Fail,
}

/// What one step asks of every stage.
pub(crate) struct StepSettings {
    /// Number of training steps that succeeded before this one.
    pub(crate) step: u64,
    pub(crate) mode: Mode,
}

/// Training or inference.
pub(crate) enum Mode {
    Train {
        loss: Arc<dyn LossFn>,
        /// Each micro-batch's share of the mini-batch: its samples over all samples.
        shares: Vec<f64>,
        /// Whether the gradient of the first stage's input is wanted.
        input_gradient: bool,
        non_finite: NonFinite,
    },
    Infer,
}

impl Mode {
    pub(crate) fn wants_input_gradient(&self) -> bool {
        matches!(
            self,
            Self::Train {
                input_gradient: true,
                ..
            }
        )
    }

    pub(crate) fn fails_on_non_finite(&self) -> bool {
        matches!(
            self,
            Self::Train {
                non_finite: NonFinite::Fail,
                ..
            }
        )
    }

    /// Micro-batches of the step; 0 in inference.
    pub(crate) fn micro_batches(&self) -> usize {
        match self {
            Self::Train { shares, .. } => shares.len(),
            Self::Infer => 0,
        }
    }
}

impl fmt::Debug for StepSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let train = matches!(self.mode, Mode::Train { .. });
        f.debug_struct("StepSettings")
            .field("step", &self.step)
            .field("train", &train)
            .finish()
    }
}
