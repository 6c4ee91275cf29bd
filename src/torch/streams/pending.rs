//! Copies in progress between device and host memory.

use tch::Tensor;

use super::ids::Event;
use crate::values::Values;

/// Device memory that is being copied to the host (D2H), held until the copies are over.
#[derive(Debug, Default)]
pub(super) struct PendingD2H {
    /// Offloaded in the present action.
    pub(super) now: Vec<Tensor>,
    /// Offloaded in the action before, whose copies the main stream has waited for.
    pub(super) before: Vec<Tensor>,
    /// The end of the copies of the action before.
    pub(super) copied: Option<Event>,
}

impl PendingD2H {
    pub(super) fn is_empty(&self) -> bool {
        self.now.is_empty() && self.before.is_empty() && self.copied.is_none()
    }
}

/// Values on their way from the host to the device (H2D).
#[derive(Debug)]
pub(crate) struct PendingH2D {
    pub(super) values: Values,
    pub(super) ready: Option<Event>,
}
