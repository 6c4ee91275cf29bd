//! Batches brought to a device ahead of their use, beside what it computes.

use std::cell::OnceCell;

use crate::TorchError;
use crate::data::OnDevice;
use crate::torch::streams::{Event, Layer, Place, Stream};

/// Brings a batch, on the batching thread: the batch on its way, and its end.
pub(super) type Bring<B> = Box<dyn Fn(B) -> Result<(B, Event), TorchError> + Send>;

/// Gives it to the thread that asked for it, to be used on that one's current stream.
pub(super) type Take<B> = Box<dyn Fn(B, &Event) -> Result<B, TorchError> + Send + Sync>;

/// Both ends of the way to a device: copies have a stream of their own, since what is put
/// into the device's default stream waits for the step that is running.
pub(super) fn ends<B: OnDevice>(layer: &Layer, device: usize) -> (Bring<B>, Take<B>) {
    let (near, far) = (layer.clone(), layer.clone());
    let stream = OnceCell::new();
    let bring = move |batch| bring(&near, device, &stream, batch);
    let take = move |batch, arrived: &Event| take(&far, device, batch, arrived);
    (Box::new(bring), Box::new(take))
}

fn bring<B: OnDevice>(
    layer: &Layer,
    device: usize,
    own: &OnceCell<Stream>,
    batch: B,
) -> Result<(B, Event), TorchError> {
    let _shared = layer.share(device);
    let stream = if let Some(stream) = own.get() {
        *stream
    } else {
        let stream = layer.stream(device)?;
        layer.enter(stream)?;
        *own.get_or_init(|| stream)
    };
    let there = Place::Accelerator(device);
    let batch = batch.map_tensors(&mut |tensor| layer.copy(&tensor, Place::Host, there))?;
    Ok((batch, layer.record(stream)?))
}

fn take<B: OnDevice>(
    layer: &Layer,
    device: usize,
    batch: B,
    arrived: &Event,
) -> Result<B, TorchError> {
    let _shared = layer.share(device);
    let current = layer.current(device)?;
    layer.wait(current, arrived)?;
    batch.map_tensors(&mut |tensor| {
        layer.used_by(&tensor, current)?;
        let there = Place::Accelerator(device);
        layer.reads("who takes a batch", there, std::iter::once(&tensor));
        Ok(tensor)
    })
}
