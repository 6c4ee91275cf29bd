//! What a stage does once its device has failed for good.
//!
//! Page-locked memory must not be freed then: its allocator would ask the device for an
//! event, in a destructor, where an error ends the process. So everything that may hold such
//! memory is leaked.

use gpipe_partitioner::{Action, ActionKind};

use crate::torch::ffi::Acting;

/// While the result lives, an error in a destructor is reported with this action.
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
