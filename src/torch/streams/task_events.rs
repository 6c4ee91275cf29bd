//! How a task of the stages joins what its caller does before and after.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use gpipe_partitioner::Action;

use super::backend::{Event, Layer, Place};
use super::in_transit::Parcel;
use crate::torch::error::TorchError;
use crate::torch::values::Values;

/// Where the caller's current streams were when a task was given out.
#[derive(Debug)]
pub(crate) struct Fork {
    events: Vec<(usize, Event)>,
}

impl Fork {
    /// For these accelerators.
    pub(crate) fn new(
        layer: &Layer,
        devices: impl Iterator<Item = usize>,
    ) -> Result<Self, TorchError> {
        let event = |device| Ok((device, layer.record(layer.current(device)?)?));
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

    /// The caller's own values, on their way to a stage.
    pub(crate) fn parcel(&self, layer: &Layer, values: Values) -> Result<Parcel, TorchError> {
        let there = values
            .present()
            .map(|tensor| layer.whereabouts(tensor))
            .max();
        let Some(Place::Accelerator(device)) = there else {
            return Ok(Parcel::new(values, Place::Host, None));
        };
        let ready = match self.of(device) {
            Some(event) => event.clone(),
            None => layer.record(layer.current(device)?)?,
        };
        let at = Place::Accelerator(device);
        Ok(Parcel::new(values, at, Some(ready)))
    }
}

/// What a device's thread leaves for the caller when a task is over.
#[derive(Debug, Default)]
pub(crate) struct Joint {
    left: Mutex<Left>,
}

/// See [`Joint`].
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// The end of what is in the main stream.
    pub(crate) end: Option<Event>,
    /// The stream's position when the task began, and when the host was there.
    pub(crate) begin: Option<(Event, Instant)>,
    /// Where actions began and ended.
    pub(crate) actions: Vec<(Action, Event, Event)>,
}

impl Joint {
    pub(super) fn leave(&self, note: impl FnOnce(&mut Left)) {
        note(&mut self.left.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes what was left.
    pub(crate) fn take(&self) -> Left {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut left)
    }
}
