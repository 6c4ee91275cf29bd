//! An optimizer's update: on all stages, or on none.
//!
//! Before it begins, every stage takes all the memory that it needs, so that what fails then has
//! changed nothing. What fails later (a copy of offloaded states, or of tied weights) is not
//! undone, as nobody keeps the old values: the update is *unfinished*, and whatever the caller
//! asks of the stages next finishes it first. Until that succeeds it is refused. Where stages are
//! in several processes, nobody goes on from there: all start anew, from a checkpoint.

use std::sync::Arc;

use super::Stages;
use crate::error::Error;
use crate::pipeline::ties::Ties;
use crate::torch::Groups;

/// An update for which all stages are prepared.
#[derive(Debug)]
pub(in crate::pipeline) struct Update {
    /// The optimizer's number.
    pub(in crate::pipeline) id: u64,
    pub(in crate::pipeline) groups: Arc<Groups>,
    pub(in crate::pipeline) ties: Ties,
}

impl Stages {
    /// Updates parameters, and brings their tied copies up to date.
    ///
    /// # Errors
    /// It could not be finished.
    pub(in crate::pipeline) fn update(&mut self, update: Update) -> Result<(), Error> {
        self.unfinished = Some(update);
        self.finish_update()
    }

    /// Finishes what an error has stopped, if there is any.
    pub(super) fn finish_update(&mut self) -> Result<(), Error> {
        // Not to be finished by its own tasks.
        let Some(update) = self.unfinished.take() else {
            return Ok(());
        };
        let done = self.apply(&update);
        done.map_err(|error| {
            if let Some(ranks) = &self.ranks {
                // Others are at the end of it, or have gone on.
                ranks.lose(&error);
            }
            self.unfinished = Some(update);
            if self.is_lost() {
                return error;
            }
            Error::Update {
                r#source: Box::new(error),
            }
        })
    }

    /// Stages that are at the end of it have nothing to do.
    fn apply(&mut self, update: &Update) -> Result<(), Error> {
        let (id, groups) = (update.id, Arc::clone(&update.groups));
        self.on_each(move |_, stage| stage.optimize(id, &groups))?;
        update.ties.refresh(self)
    }

    fn is_lost(&self) -> bool {
        let all = self.accelerators.as_ref();
        all.is_some_and(|all| all.backend.lost().is_some())
    }
}
