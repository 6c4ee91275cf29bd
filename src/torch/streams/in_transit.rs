//! Values in transit between stages (p2p).

use std::collections::BTreeMap;

use tch::{Device, Tensor};

use super::cuda;
use super::ids::{Event, MemorySpace, Stream};
use super::side_stream::within;
use crate::error::TorchError;
use crate::values::Values;

/// Values that have been sent, and the event that says when they have arrived.
#[doc(alias = "p2p")]
#[derive(Debug, Default)]
pub(crate) struct InTransit {
    pub(crate) values: Values,
    /// The event that a user of the values has to wait for.
    pub(super) ready: Option<Event>,
}

impl From<Values> for InTransit {
    fn from(values: Values) -> Self {
        Self::new(values, None)
    }
}

impl InTransit {
    pub(super) fn new(values: Values, ready: Option<Event>) -> Self {
        Self { values, ready }
    }

    /// Returns the accelerator that has some of the values.
    pub(crate) fn on_accelerator(&self) -> Option<usize> {
        let mut present = self.values.present();
        present.find_map(|tensor| match MemorySpace::of(tensor.device()) {
            MemorySpace::Accelerator(device) => Some(device),
            MemorySpace::Host => None,
        })
    }

    /// Values that the calling thread's current stream makes.
    pub(crate) fn of_current_stream(values: Values) -> Result<Self, TorchError> {
        let there = values
            .present()
            .map(|tensor| MemorySpace::of(tensor.device()));
        let Some(MemorySpace::Accelerator(device)) = there.max() else {
            return Ok(values.into());
        };
        let _shared = cuda::submit_guard(device);
        let ready = cuda::record(cuda::current(device)?)?;
        Ok(Self::new(values, Some(ready)))
    }

    /// The values on a device, for the calling thread's current stream there (rules 3 and 4).
    pub(crate) fn open(self, device: Device) -> Result<Values, TorchError> {
        let Device::Cuda(index) = device else {
            return ToHost::default().values(self);
        };
        let Self { values, ready } = self;
        let _shared = cuda::submit_guard(index);
        let stream = cuda::current(index)?;
        if let Some(ready) = &ready {
            cuda::wait(stream, ready)?;
        }
        let here = MemorySpace::Accelerator(index);
        values.try_move(|tensor| match MemorySpace::of(tensor.device()) {
            MemorySpace::Host => cuda::copy(&tensor, here),
            MemorySpace::Accelerator(device) if device == index => {
                cuda::used_by(&tensor, stream).map(|()| tensor)
            }
            MemorySpace::Accelerator(other) => {
                let _shared = cuda::submit_guard(other);
                // libtorch has it wait for both devices' current streams.
                let copy = cuda::copy(&tensor, here)?;
                cuda::used_by(&tensor, cuda::current(other)?)?;
                Ok(copy)
            }
        })
    }

    /// Lets the caller use the values in its current stream (rule 4).
    pub(crate) fn hand_out(&self) -> Result<(), TorchError> {
        for tensor in self.values.present() {
            if let MemorySpace::Accelerator(device) = MemorySpace::of(tensor.device()) {
                cuda::used_by(tensor, cuda::current(device)?)?;
            }
        }
        Ok(())
    }
}

/// Copies values to the host. It belongs to one thread, which waits for the copies; the threads
/// that compute do not.
#[doc(alias = "D2H")]
#[derive(Debug, Default)]
pub(crate) struct ToHost {
    /// Stream of the copies, by accelerator.
    streams: BTreeMap<usize, Stream>,
}

impl ToHost {
    /// The values in the host's memory, page-locked where they were an accelerator's. Strides stay
    /// as they do in a copy to another device.
    pub(crate) fn values(&mut self, in_transit: InTransit) -> Result<Values, TorchError> {
        if in_transit.on_accelerator().is_none() {
            return Ok(in_transit.values);
        }
        let InTransit { values, ready } = in_transit;
        let mut copied = Vec::new();
        let mut sources = Vec::new();
        let values = values.try_move(|tensor| {
            let Device::Cuda(device) = tensor.device() else {
                return Ok(tensor);
            };
            let stream = self.stream(device)?;
            let _shared = cuda::submit_guard(device);
            if let Some(ready) = &ready {
                cuda::wait(stream, ready)?;
            }
            let copy = within(&[stream], || to_host(&tensor))?;
            copied.push(cuda::record(stream)?);
            // Its memory belongs to its own stream, which may reuse it at once (rule 4).
            sources.push(tensor);
            Ok(copy)
        });
        // Also for copies before a failed one.
        for event in &copied {
            cuda::finish(event)?;
        }
        values
    }

    fn stream(&mut self, device: usize) -> Result<Stream, TorchError> {
        if let Some(stream) = self.streams.get(&device) {
            return Ok(*stream);
        }
        let stream = cuda::stream(device)?;
        self.streams.insert(device, stream);
        Ok(stream)
    }
}

fn to_host(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let copy = cuda::copy(tensor, MemorySpace::Host);
    copy.map_err(|error| TorchError::new(format!("while sending to another process: {error}")))
}
