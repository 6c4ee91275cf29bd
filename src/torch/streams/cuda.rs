//! Operations on streams and events of CUDA devices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tch::Tensor;

use super::held::submits;
use super::ids::{Event, MemorySpace, Stream};
use super::left_out::{empty_stream, left_out};
use crate::error::TorchError;
use crate::ffi::{self, RawEvent};

pub use super::submit::submit_guard;

/// A new stream.
pub fn stream(device: usize) -> Result<Stream, TorchError> {
    let id = ffi::new_stream(device)?;
    Ok(Stream { device, id })
}

/// The calling thread's current stream.
pub fn current(device: usize) -> Result<Stream, TorchError> {
    let id = ffi::current_stream(device)?;
    Ok(Stream { device, id })
}

/// Makes a stream the calling thread's current one of its device; returns the previous one.
#[track_caller]
pub fn enter(stream: Stream) -> Result<Stream, TorchError> {
    if left_out("enter") {
        return current(stream.device);
    }
    let id = ffi::enter_stream(stream.device, stream.id)?;
    Ok(Stream { id, ..stream })
}

/// Records an event at the current end of the stream.
#[doc(alias = "record_event")]
#[track_caller]
pub fn record(stream: Stream) -> Result<Event, TorchError> {
    submits(MemorySpace::Accelerator(stream.device));
    point(stream)
}

/// Does the same on a thread that may have no guard, for a device that may be lost.
#[track_caller]
pub(super) fn point(stream: Stream) -> Result<Event, TorchError> {
    // If left out, nothing precedes the event.
    let stream = if left_out("record") {
        empty_stream(stream.device)?
    } else {
        stream
    };
    let event = RawEvent::record(stream.device, stream.id)?;
    Ok(Event(Arc::new(event)))
}

/// Makes work submitted to the stream from now on wait for the event.
#[doc(alias = "wait_event")]
#[track_caller]
pub fn wait(stream: Stream, Event(event): &Event) -> Result<(), TorchError> {
    submits(MemorySpace::Accelerator(stream.device));
    if left_out("wait") {
        return Ok(());
    }
    event.block(stream.device, stream.id)
}

/// Blocks the host until the event is over.
#[doc(alias = "synchronize")]
#[track_caller]
pub(crate) fn finish(Event(event): &Event) -> Result<(), TorchError> {
    if left_out("finish") {
        return Ok(());
    }
    event.synchronize()
}

/// Returns whether the event is over, without waiting.
pub(crate) fn is_over(Event(event): &Event) -> Result<bool, TorchError> {
    event.is_over()
}

/// Returns whether the event is over within `patience`, without blocking in the driver.
pub(crate) fn is_over_within(event: &Event, patience: Duration) -> Result<bool, TorchError> {
    const SHORTEST: Duration = Duration::from_micros(20);
    const LONGEST: Duration = Duration::from_millis(1);
    let (begin, mut pause) = (Instant::now(), SHORTEST);
    while !is_over(event)? {
        if begin.elapsed() >= patience {
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(LONGEST);
    }
    Ok(true)
}

/// Tells the allocator that the stream uses the tensor's memory.
#[doc(alias = "record_stream")]
#[track_caller]
pub fn used_by(tensor: &Tensor, stream: Stream) -> Result<(), TorchError> {
    submits(MemorySpace::Accelerator(stream.device));
    if left_out("used_by") {
        return Ok(());
    }
    ffi::record_stream(tensor, stream.device, stream.id)
}

/// Copies on the current streams of the devices that take part. The host does not wait.
#[doc(alias = "non_blocking")]
pub fn copy(tensor: &Tensor, to: MemorySpace) -> Result<Tensor, TorchError> {
    submits(MemorySpace::of(tensor.device()));
    submits(to);
    let copy = match to {
        // Blocking, and into memory that is not page-locked.
        _ if left_out("non_blocking") => {
            tensor.f_to_device_(to.device(), tensor.kind(), false, true)?
        }
        MemorySpace::Host => ffi::copy_to(tensor, None)?,
        MemorySpace::Accelerator(device) => ffi::copy_to(tensor, Some(device))?,
    };
    Ok(copy.f_set_requires_grad(tensor.requires_grad())?)
}

/// Copies as [`copy`], into memory that is allocated already.
pub(crate) fn copy_into(to: &Tensor, tensor: &Tensor) -> Result<(), TorchError> {
    submits(MemorySpace::of(tensor.device()));
    submits(MemorySpace::of(to.device()));
    if left_out("non_blocking") {
        return Ok(tch::no_grad(|| to.shallow_clone().f_copy_(tensor))?);
    }
    ffi::copy_into(to, tensor)
}

/// Seconds from one event to another of the same device. Both must be over.
pub(crate) fn seconds(Event(from): &Event, Event(to): &Event) -> Result<f64, TorchError> {
    Ok(from.milliseconds_to(to)? / 1e3)
}
