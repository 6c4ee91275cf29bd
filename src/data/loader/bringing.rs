//! Copies batches to a device ahead of their use, beside its computation.

use std::cell::OnceCell;

use crate::OnDevice;
use gpipe_torch::TorchError;
use gpipe_torch::streams::{Event, MemorySpace, Stream, cuda};

/// Starts copying a batch, on the batching thread; returns the batch and the event of completion.
pub(super) type Bring<B> = Box<dyn Fn(B) -> Result<(B, Event), TorchError> + Send>;

/// Passes a copied batch to the calling thread, for use on its current stream.
pub(super) type Take<B> = Box<dyn Fn(B, &Event) -> Result<B, TorchError> + Send + Sync>;

/// Makes both ends of copying to a device: copies have their own stream, as the device's default stream
/// would delay them until the running step ends.
pub(super) fn ends<B: OnDevice>(device: usize) -> (Bring<B>, Take<B>) {
    let stream = OnceCell::new();
    let bring = move |batch| bring(device, &stream, batch);
    let take = move |batch, arrived: &Event| take(device, batch, arrived);
    (Box::new(bring), Box::new(take))
}

fn bring<B: OnDevice>(
    device: usize,
    own: &OnceCell<Stream>,
    batch: B,
) -> Result<(B, Event), TorchError> {
    let _shared = cuda::submit_guard(device);
    let stream = if let Some(stream) = own.get() {
        *stream
    } else {
        let stream = cuda::stream(device)?;
        cuda::enter(stream)?;
        *own.get_or_init(|| stream)
    };
    let there = MemorySpace::Accelerator(device);
    let batch = batch.map_tensors(&mut |tensor| cuda::copy(&tensor, there))?;
    Ok((batch, cuda::record(stream)?))
}

fn take<B: OnDevice>(device: usize, batch: B, arrived: &Event) -> Result<B, TorchError> {
    let _shared = cuda::submit_guard(device);
    let current = cuda::current(device)?;
    cuda::wait(current, arrived)?;
    batch.map_tensors(&mut |tensor| {
        cuda::used_by(&tensor, current)?;
        Ok(tensor)
    })
}
