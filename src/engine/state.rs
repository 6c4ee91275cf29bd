//! What the engine's calls leave for the next one, and whom a call asks.

use super::program::Program;
use gpipe_partitioner::DeviceId;
use std::sync::Arc;

/// In what state the last call left the engine.
#[derive(Debug)]
pub(super) enum State {
    /// It came to its end.
    Ready,
    /// It abandoned this step, which is undone once all overdue reports have arrived.
    Stalled(Arc<Program>),
    /// It was interrupted.
    Broken,
}

/// Devices that were asked for a report.
pub(super) struct Asked<'a> {
    pub(super) devices: Vec<DeviceId>,
    /// The program of the step that they were asked to run, if it was a step.
    pub(super) program: Option<&'a Program>,
}

impl<'a> Asked<'a> {
    pub(super) fn these(devices: &[DeviceId]) -> Self {
        Self {
            devices: devices.to_vec(),
            program: None,
        }
    }

    /// The command was to run a step of `program`.
    pub(super) fn of_step(self, program: &'a Program) -> Self {
        Self {
            program: Some(program),
            ..self
        }
    }
}
