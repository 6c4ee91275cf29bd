//! A step between its end here and the word that it counts.

use super::entry::StepOutcome;
use super::gather::Ended;

/// A step that the devices of this process are done with: see [`Engine::run`](super::Engine::run).
#[must_use = "the step does not count, and the engine does nothing else, before it is settled"]
pub struct Ran<V>(pub(super) Ended<V>);

impl<V> Ran<V> {
    /// What the step has given here; none where it has failed, here or elsewhere.
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
    /// What it has given here.
    pub outcome: StepOutcome<V>,
    /// What each process tells of it, in the order of ranks.
    pub told: Vec<Vec<u8>>,
}
