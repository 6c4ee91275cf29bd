//! Result of a step, before and after the vote on whether the step counts.

use super::event::{ActionEvent, Events};
use super::failure::StageError;
use super::topology::EdgeId;
use gpipe_partitioner::{DeviceId, MicroId, Timeline};
use std::collections::BTreeMap;

/// Values by edge and micro-batch; iteration goes through the edges in increasing
/// order and, within one, through the micro-batches in increasing order.
pub type EdgeValues<V> = BTreeMap<(EdgeId, MicroId), V>;

/// Result of a step.
#[derive(Debug)]
pub struct StepOutcome<V> {
    /// The values of the edges to the caller.
    pub exits: EdgeValues<V>,
    /// Gradients of the caller's values, for edges that carry one.
    pub gradients: EdgeValues<V>,
    /// When each action ran and, where there are replicas, when each stage exchanged its
    /// gradients with its copies.
    pub timeline: Timeline,
    /// Actions that each device ran, in its order: the source of the timeline, with the memory in
    /// flight.
    pub events: Vec<Vec<ActionEvent>>,
}

/// Result of a step on the devices of an engine.
pub(super) enum Ended<V> {
    /// All devices have done their part.
    Done(StepOutcome<V>),
    /// A device failed: the first failure.
    Failed(StageError),
    /// All devices have left the step because another process failed.
    Left,
}

/// A step that ended on the devices of this process: see [`Engine::run`](super::Engine::run).
#[must_use = "the step does not count, and the engine does nothing else, before it is settled"]
pub struct Ran<V>(pub(super) Ended<V>);

impl<V> Ran<V> {
    /// Result of the step here; none if it failed, here or elsewhere.
    pub fn outcome(&mut self) -> Option<&mut StepOutcome<V>> {
        match &mut self.0 {
            Ended::Done(outcome) => Some(outcome),
            Ended::Failed(_) | Ended::Left => None,
        }
    }
}

impl<V> std::fmt::Debug for Ran<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ended = match self.0 {
            Ended::Done(_) => "done",
            Ended::Failed(_) => "failed",
            Ended::Left => "left",
        };
        f.debug_tuple("Ran").field(&ended).finish()
    }
}

/// A step that counts in all processes.
#[derive(Debug)]
pub struct Settled<V> {
    /// Result of the step in this process.
    pub outcome: StepOutcome<V>,
    /// Messages of all processes about the step, in the order of ranks.
    pub told: Vec<Vec<u8>>,
}

/// Returns the log of the whole step as a timeline, in microseconds since its first action.
pub(super) fn timeline(events: &[Events]) -> Timeline {
    let logs = || (0..).map(DeviceId).zip(events);
    let spans =
        logs().flat_map(|(device, log)| log.actions.iter().map(move |own| own.span(device)));
    let exchanges = logs().flat_map(|(device, log)| {
        let own = log.exchanges.iter();
        own.map(move |own| own.exchange(device))
    });
    let mut exchanges: Vec<_> = exchanges.collect();
    exchanges.sort_by_key(|exchange| exchange.start);
    Timeline::with_exchanges(events.len(), spans.collect(), exchanges)
}
