//! Settings of a run's steps.

use std::fmt;
use std::sync::Arc;

use gpipe_partitioner::Plan;

use super::report::Files;
use gpipe_torch::{Loss, LossFn, LrSchedule, Values};

/// Settings of each step.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) steps: Option<usize>,
    pub(super) lr: Option<LrSchedule>,
    pub(super) clip: Option<f64>,
    /// The target ignored by the held-out accuracy, if that is measured.
    pub(super) accuracy: Option<i64>,
    pub(super) plan: Option<Plan>,
    /// Name of the model.
    pub(super) model: Option<String>,
    pub(super) files: Files,
}

/// A type-erased loss function.
#[derive(Clone)]
pub(super) struct SharedLoss(pub(super) Arc<dyn LossFn>);

impl fmt::Debug for SharedLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedLoss")
    }
}

impl LossFn for SharedLoss {
    fn loss(&self, outputs: &Values, targets: &Values) -> anyhow::Result<Loss> {
        self.0.loss(outputs, targets)
    }
}
