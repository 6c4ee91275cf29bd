//! What a device did, and when.

use gpipe_partitioner::{Action, Bytes, DeviceId, Span};
use std::time::{Duration, Instant};

/// One action as it ran.
#[derive(Clone, Copy, Debug)]
pub struct ActionEvent {
    /// The action.
    pub action: Action,
    /// From the begin of the step to the begin of the action, when its inputs had arrived.
    pub start: Duration,
    /// From the begin of the step to the end of the action, before its outputs were sent.
    pub end: Duration,
    /// What the device's stages stored for micro-batches in flight after the action.
    pub bytes_in_flight: Bytes,
}

impl ActionEvent {
    pub(super) fn span(&self, device: DeviceId) -> Span {
        Span {
            device,
            action: self.action,
            start: self.start.into(),
            end: self.end.into(),
        }
    }
}

/// One worker's log of a step. Its memory is allocated before the first action.
pub(super) struct Log {
    epoch: Instant,
    events: Vec<ActionEvent>,
}

impl Log {
    pub(super) fn new(epoch: Instant, actions: usize) -> Self {
        Self {
            epoch,
            events: Vec::with_capacity(actions),
        }
    }

    pub(super) fn add(&mut self, action: Action, start: Instant, end: Instant, bytes: u64) {
        self.events.push(ActionEvent {
            action,
            start: start.saturating_duration_since(self.epoch),
            end: end.saturating_duration_since(self.epoch),
            bytes_in_flight: Bytes(bytes),
        });
    }

    pub(super) fn into_events(self) -> Vec<ActionEvent> {
        self.events
    }
}
