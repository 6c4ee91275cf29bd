//! A stage after its device has failed for good.
//!
//! Page-locked memory must not be freed then: its allocator would ask the device for an event, in a
//! destructor, where an error ends the process. So everything that may hold such memory is leaked.

use std::ffi::CStr;

use gpipe_partitioner::{Action, ActionKind};

use super::TorchStage;
use crate::ffi::Acting;

/// Names this action in errors of destructors while the result lives.
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
    /// Does the same for work before, after and between the actions of steps; `None` if the stage
    /// computes on the host.
    pub(crate) fn acting(&self, name: &'static CStr) -> Option<Acting> {
        let on_accelerator = self.streams().on_accelerator();
        on_accelerator.map(|_| Acting::between_actions(self.number(), name))
    }

    /// Another name for the task that runs, until it is over.
    pub(crate) fn acts(&self, name: &'static CStr) {
        // The task's own guard takes the name away.
        std::mem::forget(self.acting(name));
    }
}
