//! Keys of a world in its store, below the run's own prefix.

use crate::TorchError;

/// Returns the common prefix of all keys of one start of a run.
pub(super) fn prefix(run: &str, restarts: usize) -> String {
    format!("gpipe/{run}/{restarts}")
}

/// Size and version of the process that came first.
pub(super) const WORLD: &str = "world";

/// Host of a rank.
pub(super) fn host(rank: usize) -> String {
    format!("host/{rank}")
}

/// Hosts of all ranks, as published by rank 0.
pub(super) const HOSTS: &str = "hosts";

/// Heartbeat count of a rank.
pub(super) fn beat(rank: usize) -> String {
    format!("beat/{rank}")
}

/// Call that a rank has been in for a while.
pub(super) fn call(rank: usize) -> String {
    format!("call/{rank}")
}

/// End of a generation.
pub(super) fn end(generation: u64) -> String {
    format!("{generation}/end")
}

/// Number of ranks that are done with a generation.
pub(super) fn done(generation: u64) -> String {
    format!("{generation}/done")
}

/// Prefix under which the processes of a group find each other.
pub(super) fn group(generation: u64, number: u64) -> String {
    format!("{generation}/group/{number}")
}

/// Prefix of control messages.
pub(super) const CONTROL: &str = "control";

/// Number of messages sent to a rank so far.
pub(super) fn sent(to: usize) -> String {
    to.to_string()
}

/// A message to a rank, numbered from 1; removed when read.
pub(super) fn message(to: usize, number: i64) -> String {
    format!("{to}/{number}")
}

/// Set by a rank that no longer needs the store.
pub(super) fn farewell(rank: usize) -> String {
    format!("farewell/{rank}")
}

/// Returns the message of a libtorch or gloo error, without source location and surrounding text.
pub(super) fn said(error: &TorchError) -> String {
    let text = error.message().lines().next().unwrap_or_default();
    let text = match text
        .strip_prefix('[')
        .and_then(|text| text.split_once("] "))
    {
        Some((place, rest)) if place.contains(".cc:") || place.contains(".h:") => rest,
        _ => text,
    };
    text.trim_end_matches('.').to_owned()
}
