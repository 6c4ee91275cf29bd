//! CUDA devices on which a kernel has failed (see `shim/lost.cpp`).

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use super::{Result, c_number, check};

unsafe extern "C" {
    fn gp_tell_ends();
    fn gp_acts(stage: c_int, micro_batch: c_int, name: *const c_char);
    fn gp_cuda_abandon(index: c_int) -> c_int;
}

/// Makes a CUDA error in a destructor end the process with a message.
pub(crate) fn tell_ends() {
    // SAFETY: nothing in, nothing out; done once for the process.
    unsafe { gp_tell_ends() }
}

/// While this lives, the message names the calling thread's work for a stage. At most one per
/// thread.
#[derive(Debug)]
pub(crate) struct Acting(());

impl Acting {
    pub(crate) fn new(stage: usize, micro_batch: usize, name: &'static CStr) -> Self {
        // SAFETY: the name lives for ever.
        unsafe { gp_acts(c_number(stage), c_number(micro_batch), name.as_ptr()) };
        Self(())
    }

    /// Names work before, after and between the steps.
    pub(crate) fn between_actions(stage: usize, name: &'static CStr) -> Self {
        // SAFETY: the name lives for ever.
        unsafe { gp_acts(c_number(stage), -1, name.as_ptr()) };
        Self(())
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        // SAFETY: null stands for nothing.
        unsafe { gp_acts(-1, -1, ptr::null()) }
    }
}

/// Makes the caching allocator stop querying a device when memory is freed; call it once.
pub(crate) fn abandon_cuda(index: usize) -> Result<()> {
    // SAFETY: plain values in, nothing out.
    check(unsafe { gp_cuda_abandon(c_number(index)) })
}
