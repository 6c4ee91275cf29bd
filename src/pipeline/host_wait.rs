//! Waits of the calling thread for asynchronous devices, which end with the caller's patience.
//!
//! Stages are waited for by the engine, which watches their threads. Where the calling thread
//! itself waits for a device (numbers of a step, the beginning of its clock), there is nobody to
//! watch it: it asks the device now and then instead of blocking in the driver.

use std::time::Duration;

use crate::torch::TorchError;
use crate::torch::streams::{Backend, Event, Stream};

/// What a device comes to with all its work.
pub(super) const TOLD_BEFORE: &str = "the end of what was told before";

/// What tells when a copy to the host is there.
#[derive(Debug, Clone)]
pub(super) struct HostWait {
    pub(super) backend: Backend,
    pub(super) stream: Stream,
    pub(super) event: Event,
    pub(super) patience: Option<Duration>,
}

impl HostWait {
    pub(super) fn is_over(&self) -> bool {
        // One that failed has no more to wait for.
        Backend::is_over(&self.event).unwrap_or(true)
    }

    /// # Errors
    /// The device failed, or has not come to `what` in time.
    pub(super) fn finish(&self, what: &str) -> Result<(), TorchError> {
        self.in_time(what)?;
        let finished = self.backend.finish(&self.event);
        finished.map_err(|error| self.backend.lost_in_reading(self.stream, error))
    }

    /// Without patience it is left to others to wait.
    ///
    /// # Errors
    /// The device has not come to `what` in time.
    pub(super) fn in_time(&self, what: &str) -> Result<(), TorchError> {
        in_time(&self.event, self.stream.device, self.patience, what)
    }
}

/// Waits for an event, for so long at most. A device that has failed is left to whoever asks it
/// next.
///
/// # Errors
/// The device has not come to `what` in time.
pub(super) fn in_time(
    event: &Event,
    device: usize,
    patience: Option<Duration>,
    what: &str,
) -> Result<(), TorchError> {
    let Some(patience) = patience else {
        return Ok(());
    };
    if Backend::is_over_within(event, patience).unwrap_or(true) {
        return Ok(());
    }
    Err(TorchError::new(format!(
        "cuda:{device} has not come to {what} for {patience:?}, which is the patience that was set: it is \
         still at work, waits for another device, or answers no more"
    )))
}
