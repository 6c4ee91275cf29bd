//! Copies of values from an accelerator to host memory.

use std::collections::BTreeMap;

use tch::{Device, Tensor};

use super::cuda;
use super::ids::{MemorySpace, Stream};
use super::in_transit::InTransit;
use super::side_stream::within;
use crate::error::TorchError;
use crate::values::Values;

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
