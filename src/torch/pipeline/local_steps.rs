//! Progress of replicas that train alone for some steps and are then combined (DiLoCo).
//!
//! The stages do the arithmetic ([`OuterStep`]). Steps are counted as updates
//! ([`Optimizer::step`](crate::Optimizer::step)), including those of skipped steps: a *round* ends
//! after a fixed number of them.

use serde::{Deserialize, Serialize};

use super::Pipeline;
use crate::OuterStep;
use crate::error::{Error, Setting, SettingsError};

/// The rounds of a pipeline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalSteps {
    /// Steps per round; at least 1.
    steps: usize,
    outer: OuterStep,
    /// Steps done in the current round.
    done: usize,
}

/// Position of an update in its round.
#[derive(Debug, Clone, Copy)]
pub(super) struct InRound {
    pub(super) outer: OuterStep,
    pub(super) first: bool,
    pub(super) last: bool,
}

/// Progress as saved in checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalState {
    /// Steps per round.
    pub(crate) steps: usize,
    /// Steps done in the current round.
    pub(crate) done: usize,
    pub(crate) replicas: usize,
}

impl LocalSteps {
    pub(super) fn new(steps: usize, outer: OuterStep) -> Self {
        let done = 0;
        Self { steps, outer, done }
    }

    /// Returns the position of the next update.
    pub(super) fn next(&self) -> InRound {
        InRound {
            outer: self.outer,
            first: self.done == 0,
            last: self.done + 1 == self.steps,
        }
    }

    /// Counts an update.
    pub(super) fn advance(&mut self) {
        self.done = (self.done + 1) % self.steps;
    }
}

impl Pipeline {
    /// Returns the progress to save in a checkpoint; `None` if replicas do not train alone.
    pub fn local_state(&self) -> Option<LocalState> {
        let own = self.engine.local()?;
        Some(LocalState {
            steps: own.steps,
            done: own.done,
            replicas: self.replicas(),
        })
    }

    /// Checks that training can resume from a checkpoint with this progress.
    ///
    /// # Errors
    /// The checkpoint is from inside a round of a different configuration, in words.
    pub fn check_local(&self, saved: Option<LocalState>) -> Result<(), String> {
        let Some(saved) = saved.filter(|saved| saved.done > 0) else {
            return Ok(());
        };
        let LocalState {
            steps,
            done,
            replicas,
        } = saved;
        let own = self.local_state();
        if own.is_some_and(|own| (own.steps, own.replicas) == (steps, replicas)) {
            return Ok(());
        }
        let here = match own {
            Some(own) => format!("{} replicas and local_steps = {}", own.replicas, own.steps),
            None => "no local steps".to_owned(),
        };
        Err(format!(
            "it was saved inside of a round of local steps, after {done} of {steps}, when each of \
             {replicas} replicas had weights of its own; here there are {here}: go on with \
             {replicas} replicas and local_steps = {steps} up to the end of a round, and with \
             others from there"
        ))
    }

    /// Resumes from saved progress.
    pub fn go_on_locally(&mut self, saved: Option<LocalState>) {
        if let Some(own) = self.engine.local_mut() {
            own.done = saved.map_or(0, |saved| saved.done);
        }
    }

    /// Refuses calls that would leave replicas with different weights for good.
    ///
    /// # Errors
    /// The call is inside of a round.
    pub(super) fn check_between_rounds(&self, what: &str) -> Result<(), Error> {
        let Some(own) = self.engine.local().filter(|own| own.done > 0) else {
            return Ok(());
        };
        let why = format!(
            "{what} inside of a round of local steps, after {} of {}, when each replica has \
             weights of its own: do it between rounds",
            own.done, own.steps
        );
        Err(SettingsError::invalid(Setting::LocalSteps, why).into())
    }
}
