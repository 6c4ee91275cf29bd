//! Streams beside the main one.

use std::cell::OnceCell;

use super::backend::{Backend, Stream};
use crate::torch::error::TorchError;

/// A stream that is there once something goes through it: a device has 32, which libtorch
/// gives out again and again.
#[derive(Debug, Default)]
pub(super) struct SideStream(OnceCell<Stream>);

impl SideStream {
    pub(super) fn of(&self, backend: &Backend, device: usize) -> Result<Stream, TorchError> {
        if let Some(stream) = self.0.get() {
            return Ok(*stream);
        }
        let stream = backend.stream(device)?;
        Ok(*self.0.get_or_init(|| stream))
    }
}

/// Does something with these streams as the current ones of their devices.
pub(super) fn within<T>(
    backend: &Backend,
    streams: &[Stream],
    body: impl FnOnce() -> Result<T, TorchError>,
) -> Result<T, TorchError> {
    let mut before = Vec::with_capacity(streams.len());
    for stream in streams {
        before.push(backend.enter(*stream)?);
    }
    let done = body();
    for stream in before.into_iter().rev() {
        backend.enter(stream)?;
    }
    done
}
