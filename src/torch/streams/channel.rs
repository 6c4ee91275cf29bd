//! One-way connection between a local GPU and one of another process.
//!
//! Its transfers run one after another in a high-priority side stream, which waits for the sent
//! values (rule 2), and which users of received values wait for (rule 3). No computing stream is
//! from that pool: a transfer whose other end is late would block it.

use std::time::Duration;

use parking_lot::Mutex;
use tch::Tensor;

use super::cuda;
use super::held::submits;
use super::ids::{Event, MemorySpace, Stream};
use super::in_transit::InTransit;
use super::side_stream::within;
use crate::error::TorchError;
use crate::ffi::{self, Communicator};
use crate::values::Values;

/// How long a thread sleeps between checks whether an NCCL call is over.
const PAUSE: Duration = Duration::from_micros(20);

/// One of the two ends.
#[derive(Debug)]
pub(crate) struct Channel {
    device: usize,
    stream: Stream,
    /// Dropped before the memories: after that NCCL adds nothing to the stream.
    communicator: Communicator,
    /// Memories that NCCL may still use after a failed transfer.
    unsettled: Mutex<Vec<Tensor>>,
    /// The end of the last values that have been received.
    last: Mutex<Option<Event>>,
}

/// Reason why a channel's end stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Interrupted {
    /// The caller gave up.
    #[error("the transfer was given up")]
    GivenUp,
    #[error(transparent)]
    Torch(#[from] TorchError),
}

impl Channel {
    /// Connects a device with the other end: the sender is rank 0, the receiver rank 1. Both call
    /// this with the same id.
    ///
    /// # Errors
    /// NCCL fails, or `given_up` returned true before the other end came.
    pub(crate) fn connect(
        word: &[u8; ffi::UNIQUE_ID],
        (rank, device): (usize, usize),
        given_up: impl Fn() -> bool,
    ) -> Result<Self, Interrupted> {
        let shared = cuda::submit_guard(device);
        let id = ffi::new_stream_of_high_priority(device)?;
        let own = Self {
            communicator: Communicator::connect(word, rank, device)?,
            stream: Stream { device, id },
            device,
            unsettled: Mutex::default(),
            last: Mutex::default(),
        };
        own.settle(&[], &given_up)?;
        // NCCL allocates its resources for transfers at the first one.
        let place = (tch::Kind::Uint8, tch::Device::Cuda(device));
        let first = [within(&[own.stream], || Ok(Tensor::f_zeros([1], place)?))?];
        match rank {
            0 => own.put(&first, Communicator::send)?,
            _ => own.put(&first, Communicator::receive)?,
        }
        own.settle(&first, &given_up)?;
        let there = cuda::record(own.stream)?;
        drop(shared);
        wait(&there, &given_up)?;
        Ok(own)
    }

    /// The GPU of this end.
    pub(crate) fn device(&self) -> usize {
        self.device
    }

    /// Runs `prepare` in the channel's stream, after the work that makes these values, and tells
    /// the allocator that the stream uses them.
    pub(crate) fn behind<T>(
        &self,
        sent: &InTransit,
        prepare: impl FnOnce(&Values) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let _shared = cuda::submit_guard(self.device);
        if let Some(ready) = &sent.ready {
            cuda::wait(self.stream, ready)?;
        }
        for tensor in sent.values.present() {
            if MemorySpace::of(tensor.device()) == MemorySpace::Accelerator(self.device) {
                cuda::used_by(tensor, self.stream)?;
            }
        }
        self.inside(|| prepare(&sent.values))
    }

    /// Runs `body` with the channel's stream as the current one of its device.
    fn inside<T>(&self, body: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut done = None;
        within(&[self.stream], || {
            done = Some(body());
            Ok(())
        })?;
        done.unwrap_or_else(|| anyhow::bail!("the channel's stream is of no use"))
    }

    /// Sends memories that were made on the channel's stream, or that it waits for.
    pub(crate) fn send(
        &self,
        memories: &[Tensor],
        given_up: impl Fn() -> bool,
    ) -> Result<(), Interrupted> {
        let _shared = cuda::submit_guard(self.device);
        self.put(memories, Communicator::send)?;
        self.settle(memories, &given_up)
    }

    /// Makes room by `prepare`, and begins to receive into the memories that it gives.
    pub(crate) fn receive<T>(
        &self,
        prepare: impl FnOnce() -> anyhow::Result<(T, Vec<Tensor>)>,
        given_up: impl Fn() -> bool,
    ) -> anyhow::Result<T> {
        let _shared = cuda::submit_guard(self.device);
        let (made, memories) = self.inside(prepare)?;
        if !memories.is_empty() {
            self.put(&memories, Communicator::receive)?;
            self.settle(&memories, &given_up)?;
        }
        Ok(made)
    }

    /// Receives memories; `unpack` turns them into values for a stage anywhere.
    pub(crate) fn received(
        &self,
        unpack: impl FnOnce() -> anyhow::Result<Values>,
    ) -> anyhow::Result<InTransit> {
        let _shared = cuda::submit_guard(self.device);
        let values = self.inside(unpack)?;
        let ready = cuda::record(self.stream)?;
        *self.last.lock() = Some(ready.clone());
        Ok(InTransit::new(values, Some(ready)))
    }

    /// Waits until the GPU has all that was received so far.
    pub(crate) fn finish(&self, given_up: impl Fn() -> bool) -> Result<(), Interrupted> {
        let last = self.last.lock().take();
        last.map_or(Ok(()), |last| wait(&last, &given_up))
    }

    /// Makes NCCL append a transfer to the stream.
    fn put(
        &self,
        memories: &[Tensor],
        transfer: impl FnOnce(&Communicator, &[Tensor], i64) -> Result<(), TorchError>,
    ) -> Result<(), TorchError> {
        submits(MemorySpace::Accelerator(self.device));
        transfer(&self.communicator, memories, self.stream.id)
    }

    /// Waits until NCCL has appended the requested transfer to the stream. Until then an event
    /// would not cover it, its memory must stay, and no graph may be captured on the device.
    fn settle(&self, memories: &[Tensor], given_up: &impl Fn() -> bool) -> Result<(), Interrupted> {
        let settled = self.poll(given_up);
        if settled.is_err() {
            let own = memories.iter().map(Tensor::shallow_clone);
            self.unsettled.lock().extend(own);
        }
        settled
    }

    fn poll(&self, given_up: &impl Fn() -> bool) -> Result<(), Interrupted> {
        while !self.communicator.is_ready()? {
            if given_up() {
                return Err(Interrupted::GivenUp);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Checks for failures in the background.
    pub(crate) fn check(&self) -> Result<(), TorchError> {
        self.communicator.is_ready().map(drop)
    }

    /// Ends running transfers. It may wait for the stream's dependencies, and so for other
    /// channels: each is ended by a separate thread.
    pub(crate) fn abort(&self) -> Result<(), TorchError> {
        self.communicator.abort()
    }
}

fn wait(event: &Event, given_up: &impl Fn() -> bool) -> Result<(), Interrupted> {
    const STEP: Duration = Duration::from_millis(5);
    while !cuda::is_over_within(event, STEP)? {
        if given_up() {
            return Err(Interrupted::GivenUp);
        }
    }
    Ok(())
}
