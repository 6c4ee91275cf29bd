//! Streams besides the main one.

use std::cell::OnceCell;

use super::cuda;
use super::ids::Stream;
use crate::error::TorchError;

/// A side stream, created at its first use: a device has only 32 streams, which libtorch
/// hands out in turn.
#[derive(Debug, Default)]
pub(super) struct SideStream(OnceCell<Stream>);

impl SideStream {
    pub(super) fn of(&self, device: usize) -> Result<Stream, TorchError> {
        if let Some(stream) = self.0.get() {
            return Ok(*stream);
        }
        let stream = cuda::stream(device)?;
        Ok(*self.0.get_or_init(|| stream))
    }
}

/// Runs `body` with these streams as the current ones of their devices.
pub(super) fn within<T>(
    streams: &[Stream],
    body: impl FnOnce() -> Result<T, TorchError>,
) -> Result<T, TorchError> {
    let mut before = Vec::with_capacity(streams.len());
    for stream in streams {
        before.push(cuda::enter(*stream)?);
    }
    let done = body();
    for stream in before.into_iter().rev() {
        cuda::enter(stream)?;
    }
    done
}
