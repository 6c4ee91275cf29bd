//! Device backend: operations on streams and events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpipe_partitioner::Action;
use tch::Tensor;

use super::ids::{Event, MemorySpace, Stream};
use super::left_out::left_out;
use super::recorder::Recorder;
use crate::error::TorchError;
use crate::ffi::{self, RawEvent};

/// The devices whose streams are used.
#[doc(alias = "accelerator")]
#[derive(Debug, Clone)]
pub enum Backend {
    /// libtorch's CUDA devices.
    Cuda,
    /// No devices: the operations are only recorded, and tensors stay in host memory.
    Recorder(Recorder),
}

impl Backend {
    /// The memory space of a tensor that came from `from`.
    pub(crate) fn space_of(&self, tensor: &Tensor, from: MemorySpace) -> MemorySpace {
        match self {
            Self::Cuda => MemorySpace::of(tensor.device()),
            Self::Recorder(_) => from,
        }
    }

    /// The memory space of a tensor of the caller.
    pub(crate) fn space_of_callers(&self, tensor: &Tensor) -> MemorySpace {
        match self {
            Self::Cuda => MemorySpace::of(tensor.device()),
            Self::Recorder(recorder) => recorder.space_of(tensor),
        }
    }

    /// A new stream.
    pub fn stream(&self, device: usize) -> Result<Stream, TorchError> {
        let id = match self {
            Self::Cuda => ffi::new_stream(device)?,
            Self::Recorder(recorder) => recorder.new_stream(),
        };
        Ok(Stream { device, id })
    }

    /// The calling thread's current stream.
    pub fn current(&self, device: usize) -> Result<Stream, TorchError> {
        match self {
            Self::Cuda => Ok(Stream {
                device,
                id: ffi::current_stream(device)?,
            }),
            Self::Recorder(recorder) => Ok(recorder.current(device)),
        }
    }

    /// Makes a stream the calling thread's current one of its device; returns the previous
    /// one.
    #[track_caller]
    pub fn enter(&self, stream: Stream) -> Result<Stream, TorchError> {
        if left_out("enter") {
            return self.current(stream.device);
        }
        match self {
            Self::Cuda => Ok(Stream {
                id: ffi::enter_stream(stream.device, stream.id)?,
                ..stream
            }),
            Self::Recorder(recorder) => Ok(recorder.enter(stream)),
        }
    }

    /// Records an event at the current end of the stream.
    #[doc(alias = "record_event")]
    #[track_caller]
    pub fn record(&self, stream: Stream) -> Result<Event, TorchError> {
        self.submits(MemorySpace::Accelerator(stream.device));
        self.point(stream)
    }

    /// Does the same on a thread that may have no guard, for a device that may be lost.
    #[track_caller]
    pub(super) fn point(&self, stream: Stream) -> Result<Event, TorchError> {
        // If left out, nothing precedes the event.
        let stream = if left_out("record") {
            self.empty_stream(stream.device)?
        } else {
            stream
        };
        match self {
            Self::Cuda => {
                let event = RawEvent::record(stream.device, stream.id)?;
                Ok(Event::Cuda(Arc::new(event)))
            }
            Self::Recorder(recorder) => {
                recorder.answers()?;
                Ok(Event::Recorded(recorder.record(stream)))
            }
        }
    }

    /// Makes work submitted to the stream from now on wait for the event.
    #[doc(alias = "wait_event")]
    #[track_caller]
    pub fn wait(&self, stream: Stream, event: &Event) -> Result<(), TorchError> {
        self.submits(MemorySpace::Accelerator(stream.device));
        if left_out("wait") {
            return Ok(());
        }
        match (self, event) {
            (Self::Cuda, Event::Cuda(event)) => event.block(stream.device, stream.id),
            (Self::Recorder(recorder), Event::Recorded(event)) => {
                recorder.answers()?;
                recorder.wait(stream, *event);
                Ok(())
            }
            _ => Err(foreign()),
        }
    }

    /// Blocks the host until the event is over.
    #[doc(alias = "synchronize")]
    #[track_caller]
    pub(crate) fn finish(&self, event: &Event) -> Result<(), TorchError> {
        if left_out("finish") {
            return Ok(());
        }
        match (self, event) {
            (Self::Cuda, Event::Cuda(event)) => event.synchronize(),
            (Self::Recorder(recorder), Event::Recorded(event)) => {
                recorder.answers()?;
                recorder.finish(*event);
                Ok(())
            }
            _ => Err(foreign()),
        }
    }

    /// Returns whether the event is over, without waiting. Never true for a recorder's events,
    /// whose state is unknown.
    pub(crate) fn is_over(event: &Event) -> Result<bool, TorchError> {
        match event {
            Event::Cuda(event) => event.is_over(),
            Event::Recorded(_) => Ok(false),
        }
    }

    /// Returns whether the event is over within `patience`, without blocking in the driver. A
    /// recorder's events are never waited for: they count as over.
    pub(crate) fn is_over_within(event: &Event, patience: Duration) -> Result<bool, TorchError> {
        const SHORTEST: Duration = Duration::from_micros(20);
        const LONGEST: Duration = Duration::from_millis(1);
        let Event::Cuda(event) = event else {
            return Ok(true);
        };
        let (begin, mut pause) = (Instant::now(), SHORTEST);
        while !event.is_over()? {
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
    pub fn used_by(&self, tensor: &Tensor, stream: Stream) -> Result<(), TorchError> {
        self.submits(MemorySpace::Accelerator(stream.device));
        if left_out("used_by") {
            return Ok(());
        }
        match self {
            Self::Cuda => ffi::record_stream(tensor, stream.device, stream.id),
            Self::Recorder(recorder) => {
                recorder.used_by(tensor, stream);
                Ok(())
            }
        }
    }

    /// Copies on the current streams of the devices that take part. The host does not wait.
    #[doc(alias = "non_blocking")]
    pub fn copy(
        &self,
        tensor: &Tensor,
        from: MemorySpace,
        to: MemorySpace,
    ) -> Result<Tensor, TorchError> {
        self.submits(from);
        self.submits(to);
        let copy = match (self, to) {
            // Blocking, and into memory that is not page-locked.
            (Self::Cuda, _) if left_out("non_blocking") => {
                tensor.f_to_device_(to.device(), tensor.kind(), false, true)?
            }
            (Self::Cuda, MemorySpace::Host) => ffi::copy_to(tensor, None)?,
            (Self::Cuda, MemorySpace::Accelerator(device)) => ffi::copy_to(tensor, Some(device))?,
            (Self::Recorder(recorder), _) => {
                recorder.answers()?;
                recorder.copy(tensor, from, to)?
            }
        };
        Ok(copy.f_set_requires_grad(tensor.requires_grad())?)
    }

    /// Copies as [`Backend::copy`], into memory that is allocated already.
    pub(crate) fn copy_into(
        &self,
        to: &Tensor,
        tensor: &Tensor,
        (from, into): (MemorySpace, MemorySpace),
    ) -> Result<(), TorchError> {
        self.submits(from);
        self.submits(into);
        if let Self::Recorder(recorder) = self {
            recorder.copies_into(to, tensor, (from, into));
        } else if left_out("non_blocking") {
            return Ok(tch::no_grad(|| to.shallow_clone().f_copy_(tensor))?);
        }
        ffi::copy_into(to, tensor)
    }

    /// Records that an action runs: in the current stream of an accelerator, or on the host.
    pub(crate) fn works<'a>(
        &self,
        action: Action,
        place: MemorySpace,
        reads: impl Iterator<Item = &'a Tensor>,
    ) {
        if let Self::Recorder(recorder) = self {
            recorder.works(action, place, reads);
        }
    }

    /// Records what an action has made, as it leaves the stage.
    pub(crate) fn made(&self, tensor: Tensor, place: MemorySpace) -> Result<Tensor, TorchError> {
        match (self, place) {
            (Self::Recorder(recorder), MemorySpace::Accelerator(device)) => {
                let made = recorder.made(&tensor, device)?;
                Ok(made.f_set_requires_grad(tensor.requires_grad())?)
            }
            _ => Ok(tensor),
        }
    }

    /// Records memory that an action has made and that stays for its backward.
    pub(crate) fn kept(&self, tensor: &Tensor, device: usize) -> Result<(), TorchError> {
        match self {
            Self::Recorder(recorder) => recorder.kept(tensor, device),
            Self::Cuda => Ok(()),
        }
    }

    /// Records that `who` reads tensors: in the current stream of an accelerator, or on the
    /// host.
    pub fn reads<'a>(
        &self,
        who: &str,
        place: MemorySpace,
        tensors: impl Iterator<Item = &'a Tensor>,
    ) {
        if let Self::Recorder(recorder) = self {
            recorder.reads(who, place, tensors);
        }
    }

    /// Returns whether events have timestamps.
    pub(crate) fn keeps_time(&self) -> bool {
        matches!(self, Self::Cuda)
    }

    /// Seconds from one event to another of the same device. Both must be over.
    pub(crate) fn seconds(from: &Event, to: &Event) -> Result<f64, TorchError> {
        match (from, to) {
            (Event::Cuda(from), Event::Cuda(to)) => Ok(from.milliseconds_to(to)? / 1e3),
            _ => Err(foreign()),
        }
    }
}

fn foreign() -> TorchError {
    TorchError::new("an event of another device backend")
}
