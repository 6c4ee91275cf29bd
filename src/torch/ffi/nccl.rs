//! NCCL's transfers between the GPUs of two processes (see `shim/nccl.cpp`).

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use tch::Tensor;

use super::{Result, TensorPtr, c_number, check, lend_all};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_nccl_version(out: *mut c_int) -> c_int;
    fn gp_nccl_unique_id(out: *mut u8) -> c_int;
    fn gp_nccl_connect(word: *const u8, rank: c_int, device: c_int, out: *mut *mut c_void)
    -> c_int;
    fn gp_nccl_is_ready(own: *mut c_void, out: *mut c_int) -> c_int;
    fn gp_nccl_send(own: *mut c_void, tensors: *const TensorPtr, count: i64, stream: i64) -> c_int;
    fn gp_nccl_recv(own: *mut c_void, tensors: *const TensorPtr, count: i64, stream: i64) -> c_int;
    fn gp_nccl_abort(own: *mut c_void) -> c_int;
    fn gp_nccl_free(own: *mut c_void);
    fn gp_stream_new_high(device: c_int, id: *mut i64) -> c_int;
}

/// Bytes of the id by which two ranks meet.
pub(crate) const UNIQUE_ID: usize = 128;

/// Returns the library's version number: 22809 is 2.28.9.
///
/// # Errors
/// There is no NCCL, or it is older than 2.14.
pub(crate) fn nccl_version() -> Result<i32> {
    let mut out = 0;
    // SAFETY: the place lives through the call.
    check(unsafe { gp_nccl_version(&raw mut out) })?;
    Ok(out)
}

/// Makes an id by which the two ranks of a communicator meet.
pub(crate) fn nccl_unique_id() -> Result<[u8; UNIQUE_ID]> {
    let mut out = [0; UNIQUE_ID];
    // SAFETY: the shim writes so many bytes.
    check(unsafe { gp_nccl_unique_id(out.as_mut_ptr()) })?;
    Ok(out)
}

/// Returns the id of a new high-priority stream of a CUDA device.
pub(crate) fn new_stream_of_high_priority(device: usize) -> Result<i64> {
    let mut id = 0;
    // SAFETY: `id` lives through the call.
    check(unsafe { gp_stream_new_high(c_number(device), &raw mut id) })?;
    Ok(id)
}

/// A GPU of this process and one of another, which exchange memory.
///
/// Its calls return before their work is over; see [`is_ready`](Self::is_ready).
#[derive(Debug)]
pub(crate) struct Communicator {
    pointer: NonNull<c_void>,
}

// SAFETY: the shim locks the communicator around each call, and nothing of it belongs to a thread.
unsafe impl Send for Communicator {}
// SAFETY: as for `Send`.
unsafe impl Sync for Communicator {}

impl Communicator {
    /// Begins to connect a device of this process, as rank 0 or 1, with the other rank.
    pub(crate) fn connect(word: &[u8; UNIQUE_ID], rank: usize, device: usize) -> Result<Self> {
        let (rank, device) = (c_number(rank), c_number(device));
        let mut out = ptr::null_mut();
        // SAFETY: the word has the bytes that the shim reads; `out` is owned after success.
        check(unsafe { gp_nccl_connect(word.as_ptr(), rank, device, &raw mut out) })?;
        let pointer = NonNull::new(out);
        let pointer = pointer.ok_or_else(|| TorchError::new("NCCL has made nothing"))?;
        Ok(Self { pointer })
    }

    /// Returns whether the last call is over.
    ///
    /// # Errors
    /// Something has failed, now or in the background.
    pub(crate) fn is_ready(&self) -> Result<bool> {
        let mut out = 0;
        // SAFETY: the communicator is alive, and the place lives through the call.
        check(unsafe { gp_nccl_is_ready(self.pointer.as_ptr(), &raw mut out) })?;
        Ok(out != 0)
    }

    /// Appends the sending of contiguous byte tensors on its device to a stream.
    pub(crate) fn send(&self, tensors: &[Tensor], stream: i64) -> Result<()> {
        let tensors = lend_all(tensors);
        let (all, count) = (tensors.as_ptr(), tensors.len() as i64);
        // SAFETY: communicator and tensors are alive, `count` of these.
        check(unsafe { gp_nccl_send(self.pointer.as_ptr(), all, count, stream) })
    }

    /// Appends the receiving of such tensors to a stream.
    pub(crate) fn receive(&self, tensors: &[Tensor], stream: i64) -> Result<()> {
        let tensors = lend_all(tensors);
        let (all, count) = (tensors.as_ptr(), tensors.len() as i64);
        // SAFETY: as in `send`.
        check(unsafe { gp_nccl_recv(self.pointer.as_ptr(), all, count, stream) })
    }

    /// Ends running work; every later call fails. May wait for the device.
    pub(crate) fn abort(&self) -> Result<()> {
        // SAFETY: the communicator is alive.
        check(unsafe { gp_nccl_abort(self.pointer.as_ptr()) })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self` and freed once.
        unsafe { gp_nccl_free(self.pointer.as_ptr()) }
    }
}
