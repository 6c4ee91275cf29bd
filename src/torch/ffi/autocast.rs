//! Autocast for a stretch of code.

use std::ffi::c_int;
use std::marker::PhantomData;

use tch::Device;

use super::{Result, check};
use crate::torch::precision::Precision;

unsafe extern "C" {
    fn gp_autocast_set(cuda: c_int, kind: c_int, previous: *mut c_int) -> c_int;
    fn gp_autocast_restore(cuda: c_int, previous: *const c_int);
}

/// While it lives, operators on this thread compute in a shorter type where libtorch
/// deems that fit, or in none (see `shim/autocast.cpp`). Scopes nest, and stay on the
/// thread that opened them.
#[derive(Debug)]
pub(crate) struct Autocast {
    cuda: c_int,
    previous: [c_int; 3],
    not_send: PhantomData<*const ()>,
}

impl Autocast {
    /// For operators on this device; full precision switches it off.
    pub(crate) fn open(device: Device, precision: Precision) -> Result<Self> {
        let cuda = c_int::from(device.is_cuda());
        let kind = match precision {
            Precision::F32 => 0,
            Precision::Bf16 => 1,
            Precision::Fp16 => 2,
        };
        let mut previous = [0; 3];
        // SAFETY: plain values in; `previous` has room for the three numbers that are
        // written and lives through the call.
        check(unsafe { gp_autocast_set(cuda, kind, previous.as_mut_ptr()) })?;
        Ok(Self {
            cuda,
            previous,
            not_send: PhantomData,
        })
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // SAFETY: three numbers that a successful call has written, read only.
        unsafe { gp_autocast_restore(self.cuda, self.previous.as_ptr()) }
    }
}
