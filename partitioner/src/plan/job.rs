//! A combination of schedule, shape and size to try.

use crate::builtin::ScheduleKind;
use crate::schedule::Shape;

/// One combination to try.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanJob {
    pub(super) kind: ScheduleKind,
    pub(super) shape: Shape,
    /// Samples in a micro-batch.
    pub(super) size: usize,
    /// With CUDA graphs.
    pub(super) graphs: bool,
}
