//! Scopes of autocast.

use std::ffi::c_int;
use std::marker::PhantomData;

use tch::{Device, Kind};

use super::{Result, check};

unsafe extern "C" {
    fn gp_autocast_set(cuda: c_int, kind: c_int, previous: *mut c_int) -> c_int;
    fn gp_autocast_restore(cuda: c_int, previous: *const c_int);
}

/// Scope in which operators on this thread compute in a shorter type where libtorch considers it
/// suitable, or in none (see `shim/autocast.cpp`). Scopes nest, and stay on the thread that opened
/// them.
#[derive(Debug)]
pub struct Autocast {
    cuda: c_int,
    previous: [c_int; 3],
    not_send: PhantomData<*const ()>,
}

impl Autocast {
    /// Opens a scope for operators on this device that compute in `Kind::BFloat16` or
    /// `Kind::Half`; any other type switches autocast off.
    #[doc(alias = "torch.autocast")]
    pub fn open(device: Device, kind: Kind) -> Result<Self> {
        let cuda = c_int::from(device.is_cuda());
        let kind = match kind {
            Kind::BFloat16 => 1,
            Kind::Half => 2,
            _ => 0,
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
