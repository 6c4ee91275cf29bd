//! Devices that answer nothing any more.

use std::fmt::Display;
use std::io::Write as _;

use parking_lot::Mutex;

use super::backend::{Backend, Stream};
use super::device_streams::DeviceStreams;
use crate::torch::device_lost::{DeviceLost, is_of_cuda};
use crate::torch::error::TorchError;
use crate::torch::ffi;

/// Of libtorch's devices.
static CUDA: Mutex<Option<DeviceLost>> = Mutex::new(None);

impl Backend {
    fn remembered<T>(&self, with: impl FnOnce(&mut Option<DeviceLost>) -> T) -> T {
        match self {
            Self::Cuda => with(&mut CUDA.lock()),
            Self::Recorder(recorder) => recorder.lost(with),
        }
    }

    /// The end of a device, where there has been one.
    pub(crate) fn lost(&self) -> Option<DeviceLost> {
        self.remembered(|lost| lost.clone())
    }

    /// # Errors
    /// A device is lost.
    pub(crate) fn is_there(&self) -> Result<(), DeviceLost> {
        self.lost().map_or(Ok(()), Err)
    }

    /// Says of an error, where it is one of CUDA, whether it is the end of the device. Then
    /// it is told at once, since what is freed from now on may end the process.
    pub(crate) fn explain_loss(
        &self,
        stream: Stream,
        at: impl Display,
        error: anyhow::Error,
    ) -> anyhow::Error {
        if !is_of_cuda(&error) || self.answers(stream).is_ok() {
            return error;
        }
        let (lost, new) = self.remembered(|lost| {
            let new = lost.is_none();
            let first = || DeviceLost {
                first: format!("{at}: {error:#}"),
            };
            (lost.get_or_insert_with(first).clone(), new)
        });
        if new {
            // Where nobody can be told, the error tells.
            let _ = writeln!(std::io::stderr(), "{lost}");
            if let Self::Cuda = self {
                // Who cannot be told so may end the process.
                let _ = ffi::abandon_cuda(stream.device);
            }
        }
        error.context(lost)
    }

    /// The same of an error that the host got when it waited for numbers.
    pub(crate) fn lost_in_reading(&self, stream: Stream, error: TorchError) -> TorchError {
        let explained = self.explain_loss(stream, "numbers of a step that were read", error.into());
        TorchError::new(explained.to_string())
    }

    /// A device that is lost does not even come to the end of what it was told.
    fn answers(&self, stream: Stream) -> Result<(), TorchError> {
        self.finish(&self.record(stream)?)
    }
}

impl DeviceStreams {
    /// Whether its device is lost: what is in page-locked memory must not be freed.
    pub(crate) fn is_lost(&self) -> bool {
        self.backend
            .as_ref()
            .is_some_and(|backend| backend.lost().is_some())
    }

    /// See [`Backend::explain_loss`].
    pub(crate) fn explain_loss(&self, at: impl Display, error: anyhow::Error) -> anyhow::Error {
        match (&self.backend, &self.accelerator) {
            (Some(backend), Some(accelerator)) => backend.explain_loss(accelerator.main, at, error),
            _ => error,
        }
    }
}
