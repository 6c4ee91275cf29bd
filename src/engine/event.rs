//! Log of a device's actions and exchanges, with their times.

use super::program::DeviceProgram;
use super::task::Task;
use gpipe_partitioner::{Action, Bytes, DeviceId, Exchange, Span, StageId};
use std::time::{Duration, Instant};

/// One action as it ran.
#[derive(Clone, Copy, Debug)]
pub struct ActionEvent {
    /// The action.
    pub action: Action,
    /// From the start of the step to the start of the action, when its inputs had arrived.
    pub start: Duration,
    /// From the start of the step to the end of the action, before its outputs were sent.
    pub end: Duration,
    /// Bytes stored by the device's stages for micro-batches in flight after the action.
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

/// One stage's exchange with its copies in the other replicas, with its times.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExchangeEvent {
    stage: StageId,
    /// From the start of the step to the end of round 0, after which the values are sent.
    start: Duration,
    /// From the start of the step to the end of the last round.
    end: Duration,
}

impl ExchangeEvent {
    pub(super) fn exchange(&self, device: DeviceId) -> Exchange {
        Exchange {
            device,
            stage: self.stage,
            start: self.start.into(),
            end: self.end.into(),
        }
    }
}

/// Events that a worker recorded in a step.
#[derive(Debug, Default)]
pub(super) struct Events {
    pub(super) actions: Vec<ActionEvent>,
    /// In the order of their starting times.
    pub(super) exchanges: Vec<ExchangeEvent>,
}

/// One worker's log of a step. Its memory is allocated before the first action.
pub(super) struct Log {
    epoch: Instant,
    events: Events,
}

impl Log {
    pub(super) fn new(epoch: Instant, program: &DeviceProgram) -> Self {
        // If there are exchanges, the list ends with them.
        let last = program.ops.last().map(|op| op.task);
        let exchanges = match last {
            Some(Task::Exchange { .. }) => program.stages.len(),
            Some(Task::Action(_)) | None => 0,
        };
        let events = Events {
            actions: Vec::with_capacity(program.ops.len()),
            exchanges: Vec::with_capacity(exchanges),
        };
        Self { epoch, events }
    }

    pub(super) fn add(&mut self, task: Task, start: Instant, end: Instant, bytes: u64) {
        let start = start.saturating_duration_since(self.epoch);
        let end = end.saturating_duration_since(self.epoch);
        match task {
            Task::Action(action) => self.events.actions.push(ActionEvent {
                action,
                start,
                end,
                bytes_in_flight: Bytes(bytes),
            }),
            Task::Exchange { stage, .. } => self.exchanged(stage, end),
        }
    }

    /// Records the end of a round of the exchange of `stage`, the first round or a later one.
    fn exchanged(&mut self, stage: StageId, end: Duration) {
        let exchanges = &mut self.events.exchanges;
        match exchanges.iter_mut().find(|own| own.stage == stage) {
            Some(own) => own.end = end,
            None => exchanges.push(ExchangeEvent {
                stage,
                start: end,
                end,
            }),
        }
    }

    pub(super) fn into_events(self) -> Events {
        self.events
    }
}
