//! A step between its end here and the vote on whether it counts.

use super::entry::StepOutcome;
use super::gather::Ended;

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
