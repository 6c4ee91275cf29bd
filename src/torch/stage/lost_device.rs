//! What a stage does once its device answers nothing any more.

use std::mem::{forget, take};

use gpipe_partitioner::{Action, ActionKind, MicroId, StageId};

use super::TorchStage;
use crate::engine::{Phase, Stage as _, StageError};
use crate::torch::ffi::Acting;

/// Names an action for who finds out in a destructor, while the result lives.
pub(super) fn acting(action: Action) -> Acting {
    let name = match action.kind {
        ActionKind::Forward => c"forward",
        ActionKind::Backward => c"backward",
        ActionKind::BackwardInput => c"backward of the input",
        ActionKind::BackwardWeight => c"backward of the weights",
        ActionKind::Recompute => c"recompute",
    };
    Acting::new(action.stage.index(), action.micro.index(), name)
}

impl TorchStage {
    /// Says of an error whether it is the end of the device.
    pub(super) fn explain_loss(
        &self,
        action: Phase,
        micro: Option<MicroId>,
        error: anyhow::Error,
    ) -> anyhow::Error {
        let at = StageError {
            stage: StageId(self.number),
            layer: self.layer(),
            micro,
            action,
            source: anyhow::anyhow!("an error of its device"),
        };
        self.streams.explain_loss(at, error)
    }

    /// Memory that is page-locked is not to be freed any more: its allocator would ask the
    /// device for an event, in a destructor, where the error that it gets ends the process.
    pub(super) fn leave_behind(&mut self) {
        forget(take(&mut self.flights));
        self.optimizers.leak();
    }
}

impl Drop for TorchStage {
    fn drop(&mut self) {
        if self.streams.is_lost() {
            self.leave_behind();
        }
    }
}
