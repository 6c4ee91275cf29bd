//! Building layers without memory for their weights.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use super::{Result, check};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_weightless_open(out: *mut *mut c_void) -> c_int;
    fn gp_weightless_close(scope: *mut c_void);
}

/// Scope in which tensors that this thread makes on a named device have a shape and a kind but no
/// elements (see `shim/weightless.cpp`). Raw pointers keep the scope on the thread that opened it.
#[doc(alias = "meta device")]
#[doc(alias = "init_empty_weights")]
#[derive(Debug)]
pub(crate) struct Weightless {
    pointer: NonNull<c_void>,
}

impl Weightless {
    pub(crate) fn open() -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: `out` holds an owned scope after a successful call.
        check(unsafe { gp_weightless_open(&raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no weightless scope"))?;
        Ok(Self { pointer })
    }
}

impl Drop for Weightless {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self`, freed once, on the thread that
        // opened the scope, since `self` is not `Send`.
        unsafe { gp_weightless_close(self.pointer.as_ptr()) }
    }
}
