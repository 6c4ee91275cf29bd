//! Engines with a part of a pipeline's devices: agreement with the other processes.

use super::carrier::{Ballot, Carrier, Door, UnwantedValue, Verdict};
use super::failure::{EngineError, discard};
use super::handle::Engine;
use super::inboxes::Inboxes;
use super::mesh::Mesh;
use super::message::Message;
use super::program::{Address, Program};
use super::stage::Stage;
use super::state::State;
use super::step_result::{Ended, Settled};
use super::turns::{Sharing, Turns};
use super::worker::StageBuilder;
use gpipe_partitioner::DeviceId;
use std::sync::Arc;

impl<S: Stage> Engine<S> {
    /// Same as [`Engine::new`] or [`Engine::replicated`], for some devices of a [`Mesh`], or of a
    /// pipeline of that many devices; the others are in other processes, to which `carrier` takes
    /// values. All processes call this together, and later [`Engine::step`] with the same program.
    /// A step counts in every process or in none.
    ///
    /// # Errors
    /// Those of [`Engine::new`], and [`EngineError::Elsewhere`] where another process cannot
    /// build its part; [`EngineError::Lost`] where one is lost.
    #[doc(alias = "rank")]
    #[doc(alias = "distributed")]
    pub fn part(
        mesh: impl Into<Mesh>,
        mut builders: Vec<(DeviceId, StageBuilder<S>)>,
        sharing: Option<&Sharing>,
        carrier: Arc<dyn Carrier<S::Value>>,
    ) -> Result<Self, EngineError> {
        builders.sort_by_key(|(device, _)| *device);
        let mesh = mesh.into();
        Self::build(mesh, builders, sharing, Some(carrier))
    }

    fn carrier(&self) -> Option<&Arc<dyn Carrier<S::Value>>> {
        self.shared.carrier.as_ref()
    }

    /// Checks that all processes could build their parts.
    pub(super) fn agree_on_start(
        &self,
        started: Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let Some(carrier) = self.carrier() else {
            return started;
        };
        let verdict = carrier.vote(ballot(started.as_ref().err()))?;
        started.and_then(|()| in_all(verdict))
    }

    /// Opens the door for values that other processes send in a step.
    pub(super) fn open(&self, program: &Arc<Program>) -> Result<(), EngineError> {
        let Some(carrier) = self.carrier() else {
            return Ok(());
        };
        let door = Entrance {
            inboxes: Arc::clone(&self.shared.inboxes),
            turns: self.shared.turns.clone(),
            program: Arc::clone(program),
        };
        Ok(carrier.begin(program, Arc::new(door))?)
    }

    /// Makes a step that cannot even begin here count in no process.
    pub(super) fn agree_on_refusal<T>(&mut self, error: EngineError) -> Result<T, EngineError> {
        if let Some(carrier) = self.carrier() {
            carrier.stop(&error.to_string());
            carrier.vote(ballot(Some(&error)))?;
            carrier.renew()?;
        }
        Err(error)
    }

    /// Votes on whether a step counts, and undoes it here otherwise. An error of the outer result
    /// leaves the engine broken.
    pub(super) fn agree_on_step(
        &mut self,
        ended: Ended<S::Value>,
        told: anyhow::Result<Vec<u8>>,
    ) -> Result<Result<Settled<S::Value>, EngineError>, EngineError> {
        let (ballot, untold) = match (&ended, told) {
            (Ended::Done(_), Ok(told)) => (Ballot::Done(told), None),
            (Ended::Done(_), Err(error)) => (Ballot::Failed(error.to_string()), Some(error)),
            (Ended::Left, _) => (Ballot::Left, None),
            (Ended::Failed(error), _) => (Ballot::Failed(error.to_string()), None),
        };
        let verdict = self.verdict(ballot)?;
        let own = self.is_own(&verdict);
        let first = match (ended, untold, verdict) {
            (Ended::Done(outcome), None, Verdict::Done(told)) => {
                return Ok(Ok(Settled { outcome, told }));
            }
            (Ended::Failed(first), ..) if own => EngineError::Stage(first),
            (ended, Some(error), _) if own => {
                discard(ended);
                EngineError::Untold(error)
            }
            (ended, _, verdict) => {
                discard(ended);
                // Without other processes, nobody leaves a step unless a device here has failed.
                in_all(verdict).err().unwrap_or(EngineError::Broken)
            }
        };
        if let Some(carrier) = self.carrier() {
            carrier.renew()?;
        }
        let abort = self.abort()?.map(Box::new);
        Ok(Err(match (first, abort) {
            (EngineError::Stage(first), Some(abort)) => EngineError::Abort { first, abort },
            (_, Some(abort)) => EngineError::Stage(*abort),
            (first, None) => first,
        }))
    }

    /// Returns whether this process is the one that the verdict names as failed.
    fn is_own(&self, verdict: &Verdict) -> bool {
        let own = self.carrier().and_then(|carrier| carrier.rank());
        match (own, verdict) {
            (Some(own), Verdict::Failed { rank, .. }) => own == *rank,
            _ => true,
        }
    }

    fn verdict(&self, ballot: Ballot) -> Result<Verdict, EngineError> {
        match self.carrier() {
            Some(carrier) => Ok(carrier.vote(ballot)?),
            None => Ok(Verdict::of(&[ballot])),
        }
    }

    /// Tells the other processes that this one cannot go on.
    pub(super) fn lose(&self, why: &EngineError) {
        if let Some(carrier) = self.carrier() {
            carrier.lose(&why.to_string());
        }
    }

    /// Does the same if `result` is an error, which interrupted a call.
    pub(super) fn or_lose<T>(&self, result: Result<T, EngineError>) -> Result<T, EngineError> {
        result.inspect_err(|error| self.lose(error))
    }

    /// Tells the other processes if a call of this engine was interrupted; they would wait forever.
    pub(super) fn leave_others(&self) {
        if let (Some(carrier), State::Broken | State::Stalled(_)) = (self.carrier(), &self.state) {
            carrier.lose("a call of its engine did not come to its end");
        }
    }
}

fn ballot(error: Option<&EngineError>) -> Ballot {
    error.map_or(Ballot::Done(Vec::new()), |error| {
        Ballot::Failed(error.to_string())
    })
}

/// Returns an error if another process failed.
fn in_all(verdict: Verdict) -> Result<(), EngineError> {
    match verdict {
        Verdict::Done(_) => Ok(()),
        Verdict::Failed { rank, why } => Err(EngineError::Elsewhere { rank, why }),
    }
}

/// Door for the values of one step. It does not hold the engine's carrier, since the carrier holds
/// it.
struct Entrance<S: Stage> {
    inboxes: Arc<Inboxes<S>>,
    turns: Option<Arc<Turns>>,
    program: Arc<Program>,
}

impl<S: Stage> Door<S::Value> for Entrance<S> {
    fn deliver(&self, to: Address, value: S::Value) -> Result<(), UnwantedValue> {
        let unwanted = || UnwantedValue(to);
        let inbox = self.inboxes.of(to.device).ok_or_else(unwanted)?;
        let op = self.program.consumer(to).ok_or_else(unwanted)?;
        if let Some(turns) = &self.turns {
            turns.arrive(to.device, op);
        }
        let slot = to.slot;
        inbox.post(Message::Value { slot, value });
        Ok(())
    }

    fn stop(&self) {
        self.inboxes.stop_all_but(None);
    }
}
