//! An optimizer's update: on all stages, or on none.
//!
//! Before it begins, every stage takes all the memory that it needs, so that what fails then has
//! changed nothing. What fails later (a copy of offloaded states, or of tied weights) is not
//! undone, as nobody keeps the old values: the update is *unfinished*, and whatever the caller
//! asks of the stages next finishes it first. Until that succeeds it is refused. Where stages are
//! in several processes, nobody goes on from there: all start anew, from a checkpoint.

use std::sync::Arc;

use super::{Stages, Unfinished};
use crate::error::Error;
use crate::fail_point::fail_point;
use crate::pipeline::local_steps::{InRound, LocalSteps};
use crate::pipeline::ties::Ties;
use crate::torch::{Groups, OuterStep};

/// An update for which all stages are prepared.
#[derive(Debug)]
pub(in crate::pipeline) struct Update {
    /// The optimizer's number.
    pub(in crate::pipeline) id: u64,
    pub(in crate::pipeline) groups: Arc<Groups>,
    pub(in crate::pipeline) ties: Ties,
    /// What it is in its round, where replicas train alone.
    pub(in crate::pipeline) round: Option<InRound>,
    pub(in crate::pipeline) phase: Phase,
}

/// How far an update is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pipeline) enum Phase {
    /// Stages update their parameters.
    Updating,
    /// That is done, and the outer step of a round of local steps is to be made.
    BringingTogether,
    /// It is made, and all copies are given what it came to.
    GoingOn,
    /// All have it.
    Ending,
}

impl Stages {
    /// Updates parameters, and brings their tied copies up to date.
    ///
    /// # Errors
    /// It could not be finished.
    pub(in crate::pipeline) fn update(&mut self, update: Update) -> Result<(), Error> {
        self.unfinished = Some(Unfinished::Update(update));
        self.finish_update()
    }

    /// Finishes what an error has stopped, if there is any.
    pub(super) fn finish_update(&mut self) -> Result<(), Error> {
        // Not to be finished by its own tasks.
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
                // Others are at the end of it, or have gone on.
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

    /// Stages that are at the end of it have nothing to do.
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

    /// The end of a round of local steps, which goes on where it was stopped.
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
        let all = self.accelerators.as_ref();
        all.is_some_and(|all| all.backend.lost().is_some())
    }
}
