//! Parameters common to all layers of one pass.

use gpipe_partitioner::MicroId;

use super::offload::Offload;
use crate::step::StepSettings;

/// Parameters common to all layers of one pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass<'a> {
    micro: MicroId,
    settings: &'a StepSettings,
    purpose: Purpose<'a>,
}

/// Purpose of a run of layers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose<'a> {
    /// Keeps the autograd graph; offloads the tensors saved by autograd, if requested.
    KeepGraph(Option<&'a Offload>),
    /// Keeps the inputs for another run. The graph is made and dropped: libtorch chooses kernels by
    /// whether a tensor requires a gradient (`matmul` folds batches by it), so that a run without a
    /// graph may differ in the last bits.
    KeepInputs,
    /// The graph of an earlier run is made again.
    Recompute,
    /// Keeps nothing.
    Infer,
}

impl<'a> Pass<'a> {
    pub(super) fn new(micro: MicroId, settings: &'a StepSettings, purpose: Purpose<'a>) -> Self {
        Self {
            micro,
            settings,
            purpose,
        }
    }

    pub(super) fn micro(&self) -> MicroId {
        self.micro
    }

    pub(super) fn settings(&self) -> &'a StepSettings {
        self.settings
    }

    pub(super) fn has_graph(&self) -> bool {
        !matches!(self.purpose, Purpose::Infer)
    }

    pub(super) fn is_recompute(&self) -> bool {
        matches!(self.purpose, Purpose::Recompute)
    }

    /// Returns whether the same inputs will be needed for another run.
    pub(super) fn keeps_inputs(&self) -> bool {
        matches!(self.purpose, Purpose::KeepInputs)
    }

    /// Returns the offload of tensors saved by autograd, if requested.
    pub(super) fn offload(&self) -> Option<&'a Offload> {
        match self.purpose {
            Purpose::KeepGraph(offload) => offload,
            _ => None,
        }
    }
}
