//! Waits of the calling thread for asynchronous devices, limited by the patience.
//!
//! The engine waits for stages and watches their threads. When the calling thread itself waits for
//! a device (numbers of a step, the beginning of its clock), no other thread watches it: so it
//! polls the device instead of blocking in the driver.

use std::time::Duration;

use crate::TorchError;
use crate::streams::{Event, Stream, cuda, lost};

/// Name of the event after all work that was submitted before.
pub(super) const TOLD_BEFORE: &str = "the end of what was told before";

/// Completion of a copy to the host.
#[derive(Debug, Clone)]
pub(super) struct HostWait {
    pub(super) stream: Stream,
    pub(super) event: Event,
    pub(super) patience: Option<Duration>,
}

impl HostWait {
    pub(super) fn is_over(&self) -> bool {
        // A device that failed has nothing to wait for.
        cuda::is_over(&self.event).unwrap_or(true)
    }

    /// # Errors
    /// The device failed, or has not reached `what` in time.
    pub(super) fn finish(&self, what: &str) -> Result<(), TorchError> {
        self.in_time(what)?;
        let finished = cuda::finish(&self.event);
        finished.map_err(|error| lost::explain_reading(self.stream, error))
    }

    /// Waits at most as long as the patience; without one, does not wait.
    ///
    /// # Errors
    /// The device has not reached `what` in time.
    pub(super) fn in_time(&self, what: &str) -> Result<(), TorchError> {
        in_time(&self.event, self.stream.device, self.patience, what)
    }
}

/// Waits for an event, at most as long as the patience. A failed device is reported by its next
/// use.
///
/// # Errors
/// The device has not reached `what` in time.
pub(super) fn in_time(
    event: &Event,
    device: usize,
    patience: Option<Duration>,
    what: &str,
) -> Result<(), TorchError> {
    let Some(patience) = patience else {
        return Ok(());
    };
    if cuda::is_over_within(event, patience).unwrap_or(true) {
        return Ok(());
    }
    Err(TorchError::new(format!(
        "cuda:{device} has not come to {what} for {patience:?}, which is the patience that was set: it is \
         still at work, waits for another device, or answers no more"
    )))
}
