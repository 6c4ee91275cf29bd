//! The keys of a world in its store, which are below the run's own prefix.

use crate::torch::TorchError;

/// What all keys of one start of a run begin with.
pub(super) fn prefix(run: &str, restarts: usize) -> String {
    format!("gpipe/{run}/{restarts}")
}

/// Size and version of the process that came first.
pub(super) const WORLD: &str = "world";

/// Where a rank is.
pub(super) fn host(rank: usize) -> String {
    format!("host/{rank}")
}

/// Where all ranks are, as rank 0 tells it.
pub(super) const HOSTS: &str = "hosts";

/// The number that a rank counts up while it lives.
pub(super) fn beat(rank: usize) -> String {
    format!("beat/{rank}")
}

/// The call that a rank has been in for a while.
pub(super) fn call(rank: usize) -> String {
    format!("call/{rank}")
}

/// How a generation ended.
pub(super) fn end(generation: u64) -> String {
    format!("{generation}/end")
}

/// How many are done in a generation.
pub(super) fn done(generation: u64) -> String {
    format!("{generation}/done")
}

/// Below which the processes of a group find each other.
pub(super) fn group(generation: u64, number: u64) -> String {
    format!("{generation}/group/{number}")
}

/// Below which the control messages are.
pub(super) const CONTROL: &str = "control";

/// How many messages a rank has been sent so far.
pub(super) fn sent(to: usize) -> String {
    to.to_string()
}

/// A message to a rank, by its number from 1; removed when it has been read.
pub(super) fn message(to: usize, number: i64) -> String {
    format!("{to}/{number}")
}

/// A rank that needs the store no more.
pub(super) fn farewell(rank: usize) -> String {
    format!("farewell/{rank}")
}

/// What libtorch and gloo say, without the place in their sources and what stands around it.
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
