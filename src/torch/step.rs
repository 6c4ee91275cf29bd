//! Settings of a step, common to all stages.

use std::fmt;
use std::sync::Arc;

use super::loss::LossFn;
use super::streams::CallerEvents;

/// Treatment of a step with a non-finite number (NaN or infinity).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NonFinite {
    /// The step is not checked, except for gradients under
    /// [`Precision::Fp16`](crate::Precision::Fp16): an overflow skips the step.
    #[default]
    Allow,
    /// Loss and gradients are checked when the step is over. If one is not finite, the step
    /// is undone (gradients and buffers are what they were before) and its report says so.
    #[doc(alias = "found_inf")]
    #[doc(alias = "GradScaler")]
    Skip,
    /// Outputs of layers, losses and gradients are checked as they are made. The first that
    /// is not finite fails the step with an error that names the stage, layer, micro-batch and
    /// action. Slow: for debugging. Under [`Precision::Fp16`](crate::Precision::Fp16) gradients
    /// are left to its loss scale: they skip the step as without this.
    #[doc(alias = "detect_anomaly")]
    Fail,
}

/// The settings of a step.
pub(crate) struct StepSettings {
    /// Number of training steps that succeeded before this one.
    pub(crate) step: u64,
    pub(crate) mode: Mode,
    /// The caller's work that the step runs after, where stages have streams.
    pub(crate) caller_events: Option<Arc<CallerEvents>>,
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
        /// The loss scale, if there is one.
        loss_scale: Option<f64>,
    },
    Infer {
        /// Tokens that came in earlier passes and that layers have cached; none where they are
        /// not to cache.
        past: Option<usize>,
    },
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

    /// Returns whether a non-finite gradient fails the step where it is made. A scaled gradient may
    /// overflow in normal operation.
    pub(crate) fn fails_on_gradients(&self) -> bool {
        let unscaled = matches!(
            self,
            Self::Train {
                loss_scale: None,
                ..
            }
        );
        unscaled && self.fails_on_non_finite()
    }

    /// The loss scale.
    pub(crate) fn loss_scale(&self) -> f64 {
        match self {
            Self::Train { loss_scale, .. } => loss_scale.unwrap_or(1.0),
            Self::Infer { .. } => 1.0,
        }
    }

    /// Micro-batches of the step; 0 in inference.
    pub(crate) fn micro_batches(&self) -> usize {
        match self {
            Self::Train { shares, .. } => shares.len(),
            Self::Infer { .. } => 0,
        }
    }

    /// Tokens of earlier passes that layers have cached.
    pub(crate) fn past(&self) -> Option<usize> {
        match self {
            Self::Infer { past } => *past,
            Self::Train { .. } => None,
        }
    }
}

impl fmt::Debug for StepSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let train = matches!(self.mode, Mode::Train { .. });
        f.debug_struct("StepSettings")
            .field("step", &self.step)
            .field("train", &train)
            .finish_non_exhaustive()
    }
}
