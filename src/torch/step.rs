//! What one step asks of every stage.

use std::fmt;
use std::sync::Arc;

use super::loss::LossFn;

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
