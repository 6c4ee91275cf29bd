//! What is the same for all layers of one pass.

use gpipe_partitioner::MicroId;

use super::offload::Offload;
use crate::torch::step::StepSettings;

/// What is the same for all layers of one pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass<'a> {
    micro: MicroId,
    settings: &'a StepSettings,
    purpose: Purpose<'a>,
}

/// What layers are run for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose<'a> {
    /// The autograd graph is kept; what autograd saves is offloaded, where that is asked
    /// for.
    KeepGraph(Option<&'a Offload>),
    /// The inputs are kept, for another run. The graph is made and dropped: libtorch
    /// chooses kernels by whether a tensor requires a gradient (`matmul` folds batches by
    /// it), so that a run without one may differ in the last bits.
    KeepInputs,
    /// The graph of an earlier run is made again.
    Recompute,
    /// Nothing is kept.
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

    /// Whether the same inputs will be needed for another run.
    pub(super) fn keeps_inputs(&self) -> bool {
        matches!(self.purpose, Purpose::KeepInputs)
    }

    /// Where what autograd saves goes to the host.
    pub(super) fn offload(&self) -> Option<&'a Offload> {
        match self.purpose {
            Purpose::KeepGraph(offload) => offload,
            _ => None,
        }
    }
}
