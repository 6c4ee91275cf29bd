//! An optimizer update: on all stages, or on none.
//!
//! Before it begins, every stage allocates all the memory that it needs, so that a failure up to
//! then changes nothing. A later failure (copying offloaded states or tied weights) cannot be
//! undone, as the old values are not kept: the update is *unfinished*, and the caller's next
//! operation on the stages finishes it first. Until that succeeds the operation is refused. With
//! stages in several processes, none can continue from there: all restart from a checkpoint.

use std::sync::Arc;

use super::{Stages, Unfinished};
use crate::error::Error;
use crate::fail_point::fail_point;
use crate::pipeline::local_steps::{InRound, LocalSteps};
use crate::pipeline::ties::Ties;
use crate::streams::lost;
use crate::{Groups, OuterStep};

/// An update for which all stages are prepared.
#[derive(Debug)]
pub(in crate::pipeline) struct Update {
    /// Id of the optimizer.
    pub(in crate::pipeline) id: u64,
    pub(in crate::pipeline) groups: Arc<Groups>,
    pub(in crate::pipeline) ties: Ties,
    /// Position in its round, if replicas train alone.
    pub(in crate::pipeline) round: Option<InRound>,
    pub(in crate::pipeline) phase: Phase,
}

/// Progress of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pipeline) enum Phase {
    /// Stages update their parameters.
    Updating,
    /// Parameters are updated, and the outer step of a round of local steps is computed.
    BringingTogether,
    /// The outer step is computed, and its result is sent to all copies.
    GoingOn,
    /// All copies have the result.
    Ending,
}

impl Stages {
    /// Updates parameters, and refreshes their tied copies.
    ///
    /// # Errors
    /// The update could not be finished.
    pub(in crate::pipeline) fn update(&mut self, update: Update) -> Result<(), Error> {
        self.unfinished = Some(Unfinished::Update(update));
        self.finish_update()
    }

    /// Finishes interrupted work, if there is any.
    pub(super) fn finish_update(&mut self) -> Result<(), Error> {
        // Taken out, so that its own tasks do not try to finish it.
        let mut update = match self.unfinished.take() {
            None => return Ok(()),
            Some(Unfinished::Row) => return self.undo_row(),
            Some(Unfinished::Update(update)) => update,
        };
        let done = self.apply(&mut update);
        if done.is_ok() && update.round.is_some() {
            self.local_mut().into_iter().for_each(LocalSteps::advance);
        }
        done.map_err(|error| {
            if let Some(ranks) = &self.ranks {
                // Other processes may have finished it, or moved on.
                ranks.lose(&error);
            }
            self.unfinished = Some(Unfinished::Update(update));
            if self.is_lost() {
                return error;
            }
            Error::Update {
                r#source: Box::new(error),
            }
        })
    }

    /// Updates the parameters; stages that have done so do nothing.
    fn apply(&mut self, update: &mut Update) -> Result<(), Error> {
        if update.phase == Phase::Updating {
            let (id, groups) = (update.id, Arc::clone(&update.groups));
            fail_point("update");
            self.on_each(move |_, stage| stage.optimize(id, &groups))?;
            self.give_updated()?;
            fail_point("update");
        }
        if let Some(round) = update.round.filter(|round| round.last) {
            self.end_round(round.outer, &mut update.phase)?;
        }
        update.ties.refresh(self)
    }

    /// Ends a round of local steps, from the phase where it was interrupted.
    fn end_round(&mut self, outer: OuterStep, phase: &mut Phase) -> Result<(), Error> {
        if *phase == Phase::Updating {
            *phase = Phase::BringingTogether;
        }
        if *phase == Phase::BringingTogether {
            self.bring_together(outer)?;
            *phase = Phase::GoingOn;
        }
        if *phase == Phase::GoingOn {
            self.go_on_together()?;
            *phase = Phase::Ending;
        }
        self.on_each(|_, stage| stage.end_round())?;
        Ok(())
    }

    fn is_lost(&self) -> bool {
        self.accelerators.is_some() && lost::loss().is_some()
    }
}
