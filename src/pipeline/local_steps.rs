//! Replicas that train alone for some steps and are then brought together (DiLoCo): where they
//! are in that.
//!
//! The arithmetic is the stages' own ([`OuterStep`]). What is counted are updates
//! ([`Optimizer::step`](crate::Optimizer::step)), those of skipped steps included: a *round* ends
//! with the last of so many.

use serde::{Deserialize, Serialize};

use super::Pipeline;
use crate::error::{Error, Setting, SettingsError};
use crate::torch::OuterStep;

/// The rounds of a pipeline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalSteps {
    /// Of a round; at least 1.
    steps: usize,
    outer: OuterStep,
    /// Of the present round.
    done: usize,
}

/// What an update is in its round.
#[derive(Debug, Clone, Copy)]
pub(super) struct InRound {
    pub(super) outer: OuterStep,
    pub(super) first: bool,
    pub(super) last: bool,
}

/// What checkpoints say of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LocalState {
    /// Steps of a round.
    pub(crate) steps: usize,
    /// Of the present round.
    pub(crate) done: usize,
    pub(crate) replicas: usize,
}

impl LocalSteps {
    pub(super) fn new(steps: usize, outer: OuterStep) -> Self {
        let done = 0;
        Self { steps, outer, done }
    }

    /// The next update.
    pub(super) fn next(&self) -> InRound {
        InRound {
            outer: self.outer,
            first: self.done == 0,
            last: self.done + 1 == self.steps,
        }
    }

    /// It is done.
    pub(super) fn advance(&mut self) {
        self.done = (self.done + 1) % self.steps;
    }
}

impl Pipeline {
    /// What a checkpoint is to say of local steps; none where replicas do not train alone.
    pub(crate) fn local_state(&self) -> Option<LocalState> {
        let own = self.engine.local()?;
        Some(LocalState {
            steps: own.steps,
            done: own.done,
            replicas: self.replicas(),
        })
    }

    /// Whether a checkpoint of this can be gone on from.
    ///
    /// # Errors
    /// It is from inside of a round of other local steps, in words.
    pub(crate) fn check_local(&self, saved: Option<LocalState>) -> Result<(), String> {
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

    /// Goes on as a pipeline did that has said this.
    pub(crate) fn go_on_locally(&mut self, saved: Option<LocalState>) {
        if let Some(own) = self.engine.local_mut() {
            own.done = saved.map_or(0, |saved| saved.done);
        }
    }

    /// Refuses what would leave replicas with different weights for good.
    ///
    /// # Errors
    /// Inside of a round.
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
