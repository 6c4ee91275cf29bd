//! Simulated failures of a recorder's accelerators.

use super::Recorder;
use crate::device_lost::DeviceLost;
use crate::error::TorchError;

/// The error with which failing accelerators answer every call, and the loss it led to.
#[derive(Debug, Default)]
pub(super) struct Failures {
    answer: Option<String>,
    lost: Option<DeviceLost>,
}

impl Recorder {
    /// Makes the accelerators answer every call with this error from now on, as a CUDA device does
    /// after a kernel has failed.
    pub fn fail_devices(&self, error: &str) {
        self.log.state.lock().failures.answer = Some(error.to_owned());
    }

    /// # Errors
    /// The accelerators fail.
    pub(in crate::streams) fn answers(&self) -> Result<(), TorchError> {
        let state = self.log.state.lock();
        match &state.failures.answer {
            Some(error) => Err(TorchError::new(error)),
            None => Ok(()),
        }
    }

    /// The recorded loss of a device.
    pub(in crate::streams) fn lost<T>(&self, with: impl FnOnce(&mut Option<DeviceLost>) -> T) -> T {
        with(&mut self.log.state.lock().failures.lost)
    }
}
