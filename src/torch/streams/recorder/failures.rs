//! Accelerators of a recorder that fail.

use super::Recorder;
use crate::torch::device_lost::DeviceLost;
use crate::torch::error::TorchError;

/// What accelerators say to everything, where they fail; and what is remembered of it.
#[derive(Debug, Default)]
pub(super) struct Failures {
    answer: Option<String>,
    lost: Option<DeviceLost>,
}

impl Recorder {
    /// Has the accelerators fail from now on, as a CUDA device does after an error in what
    /// it was told to do: everything that it is told or asked is answered by this.
    pub fn fail_devices(&self, error: &str) {
        self.log.state.lock().failures.answer = Some(error.to_owned());
    }

    /// # Errors
    /// The accelerators fail.
    pub(in crate::torch::streams) fn answers(&self) -> Result<(), TorchError> {
        let state = self.log.state.lock();
        match &state.failures.answer {
            Some(error) => Err(TorchError::new(error)),
            None => Ok(()),
        }
    }

    /// What is remembered of a device that is lost.
    pub(in crate::torch::streams) fn lost<T>(
        &self,
        with: impl FnOnce(&mut Option<DeviceLost>) -> T,
    ) -> T {
        with(&mut self.log.state.lock().failures.lost)
    }
}
