//! What a stage does once its device answers nothing any more.
//!
//! Memory that is page-locked is not to be freed then: its allocator would ask the device
//! for an event, in a destructor, where the error that it gets ends the process. So what may
//! hold such memory is leaked.

use gpipe_partitioner::{Action, ActionKind};

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
