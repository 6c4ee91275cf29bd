//! Schedules checkpoints, and handles failures of writing them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::error::{self, Remedy, TrainError};
use super::evaluation::Standing;
use super::folder::{DATA_PART, EVALUATION_PART, LOSS_SCALE_PART, RunFolder};
use super::hook::Hooks;
use crate::checkpoint::{Checkpoint, CheckpointError, Checkpointer, Extras, Saved};
use gpipe_torch::{Optimizer, Pipeline};

/// Settings of saving a run.
#[derive(Debug)]
pub(super) struct Saving {
    /// Steps between checkpoints; 0 saves nothing.
    pub(super) every: usize,
    /// Number of checkpoints kept.
    pub(super) keep: usize,
    /// The caller's configuration.
    pub(super) config: String,
    /// Other state that the caller saves.
    pub(super) parts: Vec<(String, Value)>,
}

/// Saves a run. A checkpoint that cannot be written does not end training: there is a warning, and the
/// next one is tried. Weights that are not finite do end it, and so does a replaced folder.
#[derive(Debug)]
pub(super) struct Checkpoints {
    writer: Checkpointer,
    saving: Saving,
    /// Step of the last checkpoint handed to the writer.
    asked: Option<usize>,
    /// Whether it has the lowest held-out loss so far.
    asked_best: bool,
    /// Whether this process writes the file that names the best one.
    leads: bool,
    /// Step of the newest complete checkpoint.
    whole: Option<u64>,
    /// Error of the last checkpoint, if it failed.
    failed: Option<CheckpointError>,
}

impl Checkpoints {
    /// `whole` is the step that the run resumes from; one of several processes `leads`.
    pub(super) fn new(
        writer: Checkpointer,
        saving: Saving,
        whole: Option<u64>,
        leads: bool,
    ) -> Self {
        Self {
            writer: writer.keep(saving.keep),
            saving,
            asked: None,
            asked_best: false,
            leads,
            whole,
            failed: None,
        }
    }

    /// Keeps the checkpoint of the lowest held-out loss, and records its name.
    pub(super) fn best_is(&mut self, step: Option<u64>, hooks: &mut Hooks<'_>) {
        self.writer.spare(step);
        if !self.leads {
            return;
        }
        if let Err(error) = RunFolder::at(self.run()).link_best(step) {
            hooks.warning(&format!(
                "{error}: nothing names the checkpoint of the lowest held-out loss"
            ));
        }
    }

    /// Whether to save the run after this step, which is always done at its end and after its best
    /// step.
    pub(super) fn due(&self, step: usize, in_any_case: bool) -> bool {
        let every = self.saving.every;
        every > 0 && (in_any_case || step.is_multiple_of(every))
    }

    /// Returns the step of the newest complete checkpoint.
    pub(super) fn whole(&self) -> Option<u64> {
        self.whole
    }

    /// Returns the step of the last attempt.
    pub(super) fn asked(&self) -> Option<usize> {
        self.asked
    }

    /// Copies everything; it is written while training continues. It is published when the next step
    /// has shown that it is good: see [`Checkpoints::approve`].
    ///
    /// # Errors
    /// Training must end.
    pub(super) fn save(
        &mut self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        step: usize,
        (data, standing): (Value, Standing),
        hooks: &mut Hooks<'_>,
    ) -> Result<(), TrainError> {
        self.settle(hooks)?;
        self.asked_best = standing.is_best(step);
        self.asked = Some(step);
        let extras = self.extras(pipe, step, data, &standing);
        let saved = self.writer.save_held(pipe, optimizer, extras);
        saved.or_else(|error| self.failed(error, hooks))
    }

    /// Saves a run that resumes in another folder, before the folder counts as a run, so that a later
    /// resume starts from here.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn save_first(
        &mut self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        step: usize,
        (data, standing): (Value, Standing),
        hooks: &mut Hooks<'_>,
    ) -> Result<(), TrainError> {
        self.asked_best = standing.is_best(step);
        self.asked = Some(step);
        let extras = self.extras(pipe, step, data, &standing);
        let saved = self.writer.save(pipe, optimizer, extras);
        let saved = saved.and_then(|()| self.writer.finish());
        self.done(saved?, hooks);
        Ok(())
    }

    fn extras(&self, pipe: &Pipeline, step: usize, data: Value, standing: &Standing) -> Extras {
        let mut own = Extras::new(step as u64)
            .config(&self.saving.config)
            .part(DATA_PART, data);
        if *standing != Standing::default() {
            own = own.part(EVALUATION_PART, json!(standing));
        }
        let parts = self.saving.parts.iter();
        let mut extras = parts.fold(own, |extras, (name, part)| extras.part(name, part.clone()));
        if let Some(scale) = pipe.loss_scale_state() {
            extras = extras.part(LOSS_SCALE_PART, scale);
        }
        extras
    }

    /// Publishes the last checkpoint, as a later step has a finite loss.
    pub(super) fn approve(&mut self) {
        self.writer.approve();
    }

    /// Warns of failures so far, without waiting.
    ///
    /// # Errors
    /// Training must end.
    pub(super) fn look(&mut self, hooks: &mut Hooks<'_>) -> Result<(), TrainError> {
        let saved = self.writer.check();
        self.take(saved, hooks)
    }

    /// Waits for the last checkpoint, and publishes it.
    ///
    /// # Errors
    /// Training must end.
    pub(super) fn settle(&mut self, hooks: &mut Hooks<'_>) -> Result<(), TrainError> {
        let saved = self.writer.finish();
        self.take(saved, hooks)
    }

    /// Checks that the last checkpoint is complete, after [`Checkpoints::settle`].
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn is_saved(&mut self) -> Result<(), TrainError> {
        let Some(error) = self.failed.take() else {
            return Ok(());
        };
        Err(TrainError::NotSaved {
            step: self.asked.unwrap_or_default(),
            error: Box::new(error),
            whole: self.whole,
        })
    }

    /// Returns the error for a non-finite loss at `step`. A checkpoint that no finite loss has followed
    /// is dropped: it cannot be resumed from.
    pub(super) fn diverged(&mut self, loss: f64, step: usize, hooks: &mut Hooks<'_>) -> TrainError {
        let saved = self.writer.discard();
        if let Err(error) = self.take(saved, hooks) {
            return error;
        }
        let remedy = match self.whole {
            Some(whole) if whole + 1 == step as u64 => self.older(whole),
            _ => self.smaller_rate(),
        };
        let remedy = Box::new(remedy);
        TrainError::Diverged { loss, step, remedy }
    }

    /// The remedy if the weights that the run resumed from are at fault.
    fn older(&self, whole: u64) -> Remedy {
        let all = Checkpoint::list(self.writer.folder()).unwrap_or_default();
        let named = all.iter().find(|one| one.step == whole);
        let older = all.iter().rev().find(|one| one.step < whole);
        Remedy::OlderCheckpoint {
            folder: self.run(),
            whole,
            older: (named.zip(older)).map(|(named, older)| (named.path.clone(), older.step)),
        }
    }

    fn smaller_rate(&self) -> Remedy {
        Remedy::SmallerRate {
            folder: self.run(),
            whole: self.whole,
        }
    }

    /// Returns the run folder.
    fn run(&self) -> PathBuf {
        let folder: &Path = self.writer.folder();
        folder.parent().unwrap_or(folder).to_owned()
    }

    fn take(
        &mut self,
        saved: Result<Option<Saved>, CheckpointError>,
        hooks: &mut Hooks<'_>,
    ) -> Result<(), TrainError> {
        match saved {
            Ok(saved) => {
                self.done(saved, hooks);
                Ok(())
            }
            Err(error) => self.failed(error, hooks),
        }
    }

    fn done(&mut self, saved: Option<Saved>, hooks: &mut Hooks<'_>) {
        if let Some(saved) = saved {
            self.whole = Some(saved.step);
            if self.asked_best {
                self.best_is(Some(saved.step), hooks);
            }
            self.failed = None;
            hooks.each(|hook| hook.checkpoint(saved.step));
        }
    }

    /// Whether a failure ends training. Otherwise prints a warning, even if quiet, for a user who is
    /// away for long.
    fn failed(&mut self, error: CheckpointError, hooks: &mut Hooks<'_>) -> Result<(), TrainError> {
        let step = self.asked.unwrap_or_default();
        match error.cause() {
            // The next step would report a lost process, if there is one.
            CheckpointError::Lost { .. } | CheckpointError::World(_) => Err(error.into()),
            CheckpointError::NotFinite { what, name, .. } => {
                let remedy = Box::new(self.smaller_rate());
                Err(TrainError::NotFinite {
                    step,
                    what,
                    name: name.clone(),
                    whole: self.whole,
                    remedy,
                })
            }
            _ => {
                hooks.warning(&format!(
                    "the checkpoint of step {step} could not be written: {error}; training goes on, \
                     and the next checkpoint is tried as ever{}",
                    error::newest(self.whole)
                ));
                self.failed = Some(error);
                Ok(())
            }
        }
    }
}
