//! What a stage takes of its device's memory.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// The bytes of a stage: what is there all the time, and what each micro-batch
/// adds while it is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageMemory {
    /// The parameters.
    pub parameters: Bytes,
    /// Their gradients (all sets of them, where they are summed in a [tree](crate::tree)), from
    /// the end of the stage's first B or W on: an optimizer's step frees them.
    pub gradients: Bytes,
    /// The optimizer's state.
    pub optimizer: Bytes,
    /// What CUDA graphs hold: the activations of all micro-batches in flight, gradients of
    /// the parameters for each, and what their kernels need.
    pub graphs: Bytes,
    /// What a micro-batch keeps from its F to its backward: all activations, or
    /// only the stage's inputs when the rest is recomputed.
    #[doc(alias = "stash")]
    pub activation: Bytes,
    /// How much of `activation` is in the host's memory meanwhile: gone when the device's
    /// action after the F is over, and back when the one before the R or backward
    /// begins. Nothing leaves where that is the device's next action after the F.
    pub offloaded: Bytes,
    /// What a recompute brings back, from R (or, without an R of its own, from the
    /// start of the backward) to the end of the backward.
    pub recomputed: Bytes,
    /// How much of `activation` a micro-batch that has an R of its own does not keep from the end
    /// of its F to its R: what that R brings back, on top of `recomputed`. Zero where R does not
    /// pay, and where the stage recomputes anyway.
    pub recomputable: Bytes,
    /// How much of `activation` leaves for the host's memory where a schedule says so of single
    /// micro-batches ([`with_offloads`](crate::Schedule::with_offloads)), and when. Zero where
    /// that does not pay, and where the stage offloads anyway.
    pub offloadable: Bytes,
    /// What W still needs after I; nothing given means all of the above.
    pub kept_for_weight: Option<Bytes>,
    /// The gradients of the stage's inputs, which wait for the stage before: from the
    /// end of the B or I that makes them to the start of the one that takes them.
    pub sent: Bytes,
    /// What an action needs while it runs, on top of the above.
    pub working: Bytes,
}

impl StageMemory {
    /// What is there all the time, and gradients.
    pub fn fixed(&self) -> Bytes {
        self.parameters + self.gradients + self.optimizer + self.graphs
    }

    /// What a micro-batch keeps between I and W.
    pub fn after_input(&self) -> Bytes {
        self.kept_for_weight
            .unwrap_or(self.activation + self.recomputed)
    }
}
