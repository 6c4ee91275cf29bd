//! Streams, events and copies of CUDA devices (see `shim/streams.cpp`).

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use tch::Tensor;

use super::{Result, TensorPtr, c_number, check, lend, own};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_stream_new(device: c_int, id: *mut i64) -> c_int;
    fn gp_stream_current(device: c_int, id: *mut i64) -> c_int;
    fn gp_stream_enter(device: c_int, id: i64, before: *mut i64) -> c_int;
    fn gp_event_record(device: c_int, id: i64, out: *mut *mut c_void) -> c_int;
    fn gp_event_free(event: *mut c_void);
    fn gp_event_block(event: *const c_void, device: c_int, id: i64) -> c_int;
    fn gp_event_synchronize(event: *const c_void) -> c_int;
    fn gp_event_query(event: *const c_void, over: *mut c_int) -> c_int;
    fn gp_event_elapsed(from: *const c_void, to: *const c_void, out: *mut f64) -> c_int;
    fn gp_record_stream(tensor: TensorPtr, device: c_int, id: i64) -> c_int;
    fn gp_copy_to(tensor: TensorPtr, device: c_int, out: *mut TensorPtr) -> c_int;
    fn gp_copy_into(to: TensorPtr, from: TensorPtr) -> c_int;
}

/// A new stream of a CUDA device, by its id.
pub(crate) fn new_stream(device: usize) -> Result<i64> {
    let mut id = 0;
    // SAFETY: `id` lives through the call.
    check(unsafe { gp_stream_new(c_number(device), &raw mut id) })?;
    Ok(id)
}

/// The calling thread's current stream of a CUDA device.
pub(crate) fn current_stream(device: usize) -> Result<i64> {
    let mut id = 0;
    // SAFETY: `id` lives through the call.
    check(unsafe { gp_stream_current(c_number(device), &raw mut id) })?;
    Ok(id)
}

/// Makes a stream the calling thread's current one of its device; gives the one before.
pub(crate) fn enter_stream(device: usize, id: i64) -> Result<i64> {
    let mut before = 0;
    // SAFETY: the id is one that libtorch has given for this device; `before` lives
    // through the call.
    check(unsafe { gp_stream_enter(c_number(device), id, &raw mut before) })?;
    Ok(before)
}

/// A point in a stream of a CUDA device.
#[derive(Debug)]
pub(crate) struct RawEvent {
    pointer: NonNull<c_void>,
}

// SAFETY: an event is recorded once, before anybody else has it; what is done with it
// after that are calls of the CUDA runtime that any thread may make.
unsafe impl Send for RawEvent {}
// SAFETY: as above.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    /// Records an event at the current end of the stream.
    pub(crate) fn record(device: usize, stream: i64) -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: `out` holds an owned event after a successful call.
        check(unsafe { gp_event_record(c_number(device), stream, &raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no event"))?;
        Ok(Self { pointer })
    }

    /// Makes work submitted to the stream from now on wait for the event.
    pub(crate) fn block(&self, device: usize, stream: i64) -> Result<()> {
        // SAFETY: the event is alive.
        check(unsafe { gp_event_block(self.pointer.as_ptr(), c_number(device), stream) })
    }

    /// Blocks the host until the event is over.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        check(unsafe { gp_event_synchronize(self.pointer.as_ptr()) })
    }

    /// Returns whether the event is over, without waiting.
    pub(crate) fn is_over(&self) -> Result<bool> {
        let mut over = 0;
        // SAFETY: the event is alive, and `over` lives through the call.
        check(unsafe { gp_event_query(self.pointer.as_ptr(), &raw mut over) })?;
        Ok(over != 0)
    }

    /// Milliseconds from this event to another of the same device, both of them over.
    pub(crate) fn milliseconds_to(&self, other: &Self) -> Result<f64> {
        let mut out = 0.0;
        // SAFETY: both events are alive, and `out` lives through the call.
        check(unsafe {
            gp_event_elapsed(self.pointer.as_ptr(), other.pointer.as_ptr(), &raw mut out)
        })?;
        Ok(out)
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self` and freed once.
        unsafe { gp_event_free(self.pointer.as_ptr()) }
    }
}

/// Tells the allocator that the stream uses the tensor's memory: once freed, it is not reused
/// before the work in the stream is over.
pub(crate) fn record_stream(tensor: &Tensor, device: usize, stream: i64) -> Result<()> {
    // SAFETY: the tensor is alive through the call.
    check(unsafe { gp_record_stream(lend(tensor), c_number(device), stream) })
}

/// A copy on a CUDA device, or (none) in page-locked memory of the host, on the current
/// streams; the host does not wait.
pub(crate) fn copy_to(tensor: &Tensor, device: Option<usize>) -> Result<Tensor> {
    let mut out = ptr::null_mut();
    // SAFETY: the tensor is alive; `out` is a new tensor on success.
    unsafe {
        check(gp_copy_to(
            lend(tensor),
            device.map_or(-1, c_number),
            &raw mut out,
        ))?;
        own(out)
    }
    .ok_or_else(|| TorchError::new("a copy gave no tensor"))
}

/// A copy in page-locked memory of the host (D2H), on the current stream of the tensor's
/// device; the host does not wait for it.
#[doc(alias = "pin_memory")]
#[doc(alias = "non_blocking")]
pub(crate) fn copy_to_host(tensor: &Tensor) -> Result<Tensor> {
    copy_to(tensor, None)
}

/// Copies values into a tensor on the current streams; the host does not wait if its own memory
/// is page-locked.
pub(crate) fn copy_into(to: &Tensor, from: &Tensor) -> Result<()> {
    // SAFETY: both tensors are alive.
    check(unsafe { gp_copy_into(lend(to), lend(from)) })
}
