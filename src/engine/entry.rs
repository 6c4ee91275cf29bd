//! Values that the caller posts into a step.

use super::program::Program;
use super::topology::EdgeId;
use gpipe_partitioner::{DeviceId, MicroId};

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
