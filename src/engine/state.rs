//! State of an engine between calls, and the devices that a call asks.

use super::program::Program;
use gpipe_partitioner::DeviceId;
use std::sync::Arc;

/// State in which the last call left the engine.
#[derive(Debug)]
pub(super) enum State {
    /// The call completed.
    Ready,
    /// The call abandoned this step, which is undone once all overdue reports have arrived.
    Stalled(Arc<Program>),
    /// The call was interrupted.
    Broken,
}

/// Devices that were asked for a report.
pub(super) struct Asked<'a> {
    pub(super) devices: Vec<DeviceId>,
    /// The program of the step, if they were asked to run one.
    pub(super) program: Option<&'a Program>,
}

impl<'a> Asked<'a> {
    pub(super) fn these(devices: &[DeviceId]) -> Self {
        Self {
            devices: devices.to_vec(),
            program: None,
        }
    }

    /// Notes that the command was to run a step of `program`.
    pub(super) fn of_step(self, program: &'a Program) -> Self {
        Self {
            program: Some(program),
            ..self
        }
    }
}
