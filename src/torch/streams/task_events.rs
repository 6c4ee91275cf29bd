//! Events that order a task of the stages with its caller's work before and after it.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use gpipe_partitioner::Action;

use super::cuda;
use super::ids::{Event, MemorySpace};
use super::in_transit::InTransit;
use crate::error::TorchError;
use crate::values::Values;

/// Events in the caller's current streams, recorded when the caller starts a task (rule 6).
#[derive(Debug)]
pub(crate) struct CallerEvents {
    events: Vec<(usize, Event)>,
}

impl CallerEvents {
    /// Records them on these accelerators.
    pub(crate) fn new(devices: impl Iterator<Item = usize>) -> Result<Self, TorchError> {
        let event = |device| {
            let _shared = cuda::submit_guard(device);
            Ok((device, cuda::record(cuda::current(device)?)?))
        };
        Ok(Self {
            events: devices.map(event).collect::<Result<_, TorchError>>()?,
        })
    }

    pub(super) fn events(&self) -> impl Iterator<Item = &(usize, Event)> {
        self.events.iter()
    }

    pub(super) fn of(&self, device: usize) -> Option<&Event> {
        let found = self.events.iter().find(|(own, _)| *own == device);
        found.map(|(_, event)| event)
    }

    /// Sends the caller's own values to a stage.
    pub(crate) fn in_transit(&self, values: Values) -> Result<InTransit, TorchError> {
        let there = values
            .present()
            .map(|tensor| MemorySpace::of(tensor.device()));
        let Some(MemorySpace::Accelerator(device)) = there.max() else {
            return Ok(values.into());
        };
        match self.of(device) {
            Some(event) => Ok(InTransit::new(values, Some(event.clone()))),
            None => InTransit::of_current_stream(values),
        }
    }
}

/// Record of a task's events by a device's thread, for the caller.
#[derive(Debug, Default)]
pub(crate) struct TaskLog {
    task_events: Mutex<TaskEvents>,
}

/// The events of one task on one device.
#[derive(Debug, Default)]
pub(crate) struct TaskEvents {
    /// The end of the task in the main stream.
    pub(crate) end: Option<Event>,
    /// The main stream's position when the task began, and the host's time then.
    pub(crate) begin: Option<(Event, Instant)>,
    /// The beginning and end of each action.
    pub(crate) actions: Vec<(Action, Event, Event)>,
}

impl TaskLog {
    pub(super) fn note(&self, note: impl FnOnce(&mut TaskEvents)) {
        note(
            &mut self
                .task_events
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Takes what has been recorded since the last call.
    pub(crate) fn take(&self) -> TaskEvents {
        let mut task_events = self
            .task_events
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut task_events)
    }
}
