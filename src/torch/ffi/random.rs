//! Scopes with their own random generators.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use super::{Result, check};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_random_open(seed: u64, out: *mut *mut c_void) -> c_int;
    fn gp_random_close(scope: *mut c_void);
    fn gp_random_drew(scope: *const c_void) -> c_int;
}

/// Scope in which everything that this thread draws comes from generators seeded with its seed (see
/// `shim/random.cpp`). Scopes nest; raw pointers keep a scope on the thread that opened it.
#[doc(alias = "fork_rng")]
#[derive(Debug)]
pub struct RandomScope {
    pointer: NonNull<c_void>,
}

impl RandomScope {
    /// Has random numbers of this thread come from `seed` until the scope is dropped.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn open(seed: u64) -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: `out` holds an owned scope after a successful call.
        check(unsafe { gp_random_open(seed, &raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no random scope"))?;
        Ok(Self { pointer })
    }

    /// Returns whether anything was drawn in the scope so far.
    pub(crate) fn drew(&self) -> bool {
        // SAFETY: the scope is open, on this thread.
        unsafe { gp_random_drew(self.pointer.as_ptr()) != 0 }
    }
}

impl Drop for RandomScope {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self`, freed once, on the thread that
        // opened the scope, since `self` is not `Send`.
        unsafe { gp_random_close(self.pointer.as_ptr()) }
    }
}
