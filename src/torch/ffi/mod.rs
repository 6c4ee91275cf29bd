//! The one place with `unsafe`: safe wrappers around the C++ shim (`shim/*.cpp`).
//!
//! Two facts carry all of it. A tch `Tensor` owns a heap-allocated
//! `at::Tensor`, so its pointer may be lent to the shim for the length of a
//! call, and a pointer the shim returns from `new at::Tensor` may be given to
//! tch to own. And every shim function catches all C++ exceptions, returning
//! non-zero and leaving a message (without back-trace) in a thread-local that
//! [`error`] reads on the same thread.
#![allow(unsafe_code)]

mod aliases;
mod autocast;
mod cuda_graphs;
mod driver;
mod gradients;
mod graph;
mod lost;
mod memory;
mod optim;
mod random;
mod runtime;
mod saved_tensors;
mod streams;
mod weightless;

pub(crate) use aliases::*;
pub(crate) use autocast::*;
pub(crate) use cuda_graphs::*;
pub(crate) use driver::*;
pub(crate) use gradients::*;
pub(crate) use graph::*;
pub(crate) use lost::*;
pub(crate) use memory::*;
pub(crate) use optim::*;
pub(crate) use random::*;
pub(crate) use runtime::*;
pub(crate) use saved_tensors::*;
pub(crate) use streams::*;
pub(crate) use weightless::*;

use std::ffi::{CStr, c_char, c_int, c_void};

use tch::Tensor;

use super::error::TorchError;

type Result<T> = std::result::Result<T, TorchError>;
type TensorPtr = *mut c_void;

unsafe extern "C" {
    fn gp_error() -> *const c_char;
}

/// The message of this thread's last failed call.
fn error() -> TorchError {
    // SAFETY: `gp_error` returns a NUL-terminated string owned by a thread-local
    // that only the next failing call on this thread changes; it is copied here.
    let text = unsafe { CStr::from_ptr(gp_error()) };
    TorchError::new(text.to_string_lossy())
}

fn check(status: c_int) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(error()) }
}

/// A number as the shim takes it. One that is too large is the largest, which no device or
/// count has, so that libtorch refuses it.
fn c_number(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn lend(tensor: &Tensor) -> TensorPtr {
    tensor.as_ptr().cast_mut().cast()
}

fn lend_all(tensors: &[Tensor]) -> Vec<TensorPtr> {
    tensors.iter().map(lend).collect()
}

/// Takes ownership of what a shim function returned.
///
/// # Safety
/// `pointer` must be null or come from `new at::Tensor` and be owned by nobody.
unsafe fn own(pointer: TensorPtr) -> Option<Tensor> {
    // SAFETY: the caller's promise is exactly what `from_ptr` asks for.
    (!pointer.is_null()).then(|| unsafe { Tensor::from_ptr(pointer.cast()) })
}

fn same_length(lists: &[&[Tensor]]) -> Result<i64> {
    let count = lists.first().map_or(0, |list| list.len());
    if lists.iter().all(|list| list.len() == count) {
        Ok(count as i64)
    } else {
        let lengths: Vec<_> = lists.iter().map(|list| list.len()).collect();
        Err(TorchError::new(format!(
            "tensor lists of different lengths: {lengths:?}"
        )))
    }
}
