//! A combination of schedule, shape and size to try.

use crate::builtin::ScheduleKind;
use crate::schedule::Shape;

/// One combination to try.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanJob {
    pub(super) kind: ScheduleKind,
    /// Shape of each replica.
    pub(super) shape: Shape,
    pub(super) replicas: usize,
    /// Samples in a micro-batch.
    pub(super) size: usize,
    /// Whether CUDA graphs are used.
    pub(super) graphs: bool,
    /// Whether stages may offload.
    pub(super) offload: bool,
}

impl PlanJob {
    /// Schedule and number of chunks: of each, the best is a runner-up.
    pub(super) fn key(&self) -> (ScheduleKind, usize) {
        (self.kind, self.shape.chunks)
    }

    /// Micro-batches of all replicas.
    pub(super) fn micro_batches(&self) -> usize {
        self.shape.micro_batches * self.replicas
    }

    /// The other choices among jobs with the same schedule, chunks and micro-batches.
    pub(super) fn means(&self) -> (bool, bool) {
        (self.graphs, self.offload)
    }

    /// All choices among jobs with the same schedule.
    pub(super) fn choice(&self) -> (usize, usize, (bool, bool)) {
        let Shape {
            chunks,
            micro_batches,
            ..
        } = self.shape;
        (chunks, micro_batches, self.means())
    }

    /// Number of forwards and backwards of a step.
    pub(super) fn actions(&self) -> usize {
        2 * self.shape.stages() * self.shape.micro_batches
    }
}
