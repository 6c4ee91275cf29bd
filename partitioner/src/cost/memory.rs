//! Memory of a stage on its device.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Bytes of a stage: a fixed part, and the part that each micro-batch adds while in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageMemory {
    /// The parameters.
    pub parameters: Bytes,
    /// Gradients of the parameters (all sets of them, if summed in a [tree](crate::tree)), from the
    /// end of the stage's first B or W on: an optimizer's step frees them.
    pub gradients: Bytes,
    /// The optimizer's state.
    pub optimizer: Bytes,
    /// Memory of CUDA graphs: the activations of all micro-batches in flight, gradients of the
    /// parameters for each, and workspaces of their kernels.
    pub graphs: Bytes,
    /// Bytes that a micro-batch keeps from its F to its backward: all activations, or only the
    /// stage's inputs when the rest is recomputed.
    #[doc(alias = "stash")]
    pub activation: Bytes,
    /// Part of `activation` that is offloaded to the host meanwhile: gone when the device's action
    /// after the F ends, and back when the one before the R or backward begins. Nothing is
    /// offloaded if these are the same action.
    pub offloaded: Bytes,
    /// Bytes that a recompute restores, from R (or, without a separate R, from the start of the
    /// backward) to the end of the backward.
    pub recomputed: Bytes,
    /// Part of `activation` that a micro-batch with a separate R does not keep from the end of its
    /// F to its R, which restores it, in addition to `recomputed`. Zero if R does not pay, and if
    /// the stage recomputes anyway.
    pub recomputable: Bytes,
    /// Part of `activation` that is offloaded if a schedule says so for single micro-batches
    /// ([`with_offloads`](crate::Schedule::with_offloads)). Zero if that does not pay, and if the
    /// stage offloads anyway.
    pub offloadable: Bytes,
    /// Bytes that W still needs after I; none means all of the above.
    pub kept_for_weight: Option<Bytes>,
    /// Gradients of the stage's inputs, waiting for the previous stage: from the end of the B or I
    /// that makes them to the start of the one that takes them.
    pub sent: Bytes,
    /// Additional bytes of an action while it runs.
    pub working: Bytes,
}

impl StageMemory {
    /// Fixed bytes, including gradients.
    pub fn fixed(&self) -> Bytes {
        self.parameters + self.gradients + self.optimizer + self.graphs
    }

    /// Bytes that a micro-batch keeps between I and W.
    pub fn after_input(&self) -> Bytes {
        self.kept_for_weight
            .unwrap_or(self.activation + self.recomputed)
    }
}
