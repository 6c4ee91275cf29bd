//! Values that the caller posts into a step, and the results of the step.

use super::event::{ActionEvent, Events};
use super::program::Program;
use super::topology::EdgeId;
use gpipe_partitioner::{DeviceId, MicroId, Timeline};
use std::collections::BTreeMap;

/// A value that the caller posts into a step: one per edge from the caller and
/// micro-batch.
#[derive(Clone, Debug)]
pub struct Entry<V> {
    /// An edge that leads from the caller to a stage.
    pub edge: EdgeId,
    /// The micro-batch.
    pub micro: MicroId,
    /// The value.
    pub value: V,
}

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

/// The caller's values are not one per edge from the caller and micro-batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// Nothing was posted for an edge and micro-batch.
    #[error("no value for edge {edge}, micro-batch {micro}")]
    Missing {
        /// The edge.
        edge: EdgeId,
        /// The micro-batch.
        micro: MicroId,
    },
    /// Two values were posted for the same edge and micro-batch.
    #[error("two values for edge {edge}, micro-batch {micro}")]
    Twice {
        /// The edge.
        edge: EdgeId,
        /// The micro-batch.
        micro: MicroId,
    },
    /// The edge does not lead from the caller, or the micro-batch does not exist.
    #[error(
        "a value for edge {edge}, micro-batch {micro}: nothing takes one there from the caller"
    )]
    Unwanted {
        /// The edge.
        edge: EdgeId,
        /// The micro-batch.
        micro: MicroId,
    },
}

/// Sorts the entries by the device that consumes them: per device of `devices` (slot, value).
///
/// # Errors
/// When the entries are not exactly those that `program` takes.
pub(super) fn sort<V>(
    program: &Program,
    devices: &[DeviceId],
    entries: Vec<Entry<V>>,
) -> Result<Vec<Vec<(usize, V)>>, EntryError> {
    let rows = program.entries().iter();
    let mut seen: Vec<Vec<bool>> = rows.map(|row| vec![false; row.places.len()]).collect();
    let mut sorted: Vec<Vec<(usize, V)>> = devices.iter().map(|_| Vec::new()).collect();
    for Entry { edge, micro, value } in entries {
        let (row, at) = find(program, edge, micro).ok_or(EntryError::Unwanted { edge, micro })?;
        let place = program.entries()[row].places[at];
        if std::mem::replace(&mut seen[row][at], true) {
            return Err(EntryError::Twice { edge, micro });
        }
        // A program has entries for its own devices only, which are the engine's.
        if let Ok(index) = devices.binary_search(&place.device) {
            sorted[index].push((place.slot, value));
        }
    }
    for (row, seen) in program.entries().iter().zip(&seen) {
        if let Some(at) = seen.iter().position(|seen| !seen) {
            return Err(EntryError::Missing {
                edge: row.edge,
                micro: MicroId(row.first.index() + at),
            });
        }
    }
    Ok(sorted)
}

/// Returns the row of the program's entries, and the place in the row.
fn find(program: &Program, edge: EdgeId, micro: MicroId) -> Option<(usize, usize)> {
    let rows = program.entries();
    let behind = rows.partition_point(|row| (row.edge, row.first) <= (edge, micro));
    let row = behind.checked_sub(1)?;
    let at = micro.index().checked_sub(rows[row].first.index())?;
    (rows[row].edge == edge && at < rows[row].places.len()).then_some((row, at))
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
