//! What a run's steps are given.

use std::fmt;
use std::sync::Arc;

use gpipe_partitioner::Plan;

use super::report::Files;
use gpipe_torch::{Loss, LossFn, LrSchedule, Values};

/// What is chosen about each step.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) steps: Option<usize>,
    pub(super) lr: Option<LrSchedule>,
    pub(super) clip: Option<f64>,
    /// The target that does not count in the accuracy on held-out data, where that is measured.
    pub(super) accuracy: Option<i64>,
    pub(super) plan: Option<Plan>,
    /// What the model is called.
    pub(super) model: Option<String>,
    pub(super) files: Files,
}

/// A loss function whose type is forgotten.
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
