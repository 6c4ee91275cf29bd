//! When a run is saved, and what becomes of a checkpoint that cannot be written.

use std::path::Path;

use serde_json::Value;

use super::Failure;
use super::job::Job;
use crate::checkpoint::{Checkpoint, CheckpointError, Checkpointer, Extras, Saved};
use crate::cli::say;
use crate::cli::trained::failed_checkpoint;
use crate::{Optimizer, Pipeline};

/// In a run folder.
pub(super) const FOLDER: &str = "checkpoints";
/// Parts of a checkpoint.
pub(super) const DATA: &str = "data";
pub(super) const LOSS_SCALE: &str = "loss_scale";
/// The characters that tokens stand for, in their order.
pub(super) const VOCABULARY: &str = "vocabulary";

/// Saves a run. A checkpoint that cannot be written ends no training: there is a warning,
/// and the next one is tried as ever. Weights that are not finite do end it, and so does a
/// folder that is another one now.
#[derive(Debug)]
pub(super) struct Checkpoints {
    writer: Checkpointer,
    every: usize,
    config: String,
    vocabulary: Option<String>,
    /// The step of the last one that was handed to the writer.
    asked: Option<usize>,
    /// The step of the newest one that is whole.
    whole: Option<u64>,
    /// Why the last one is not.
    failed: Option<CheckpointError>,
}

impl Checkpoints {
    /// Of a run with this resolved configuration; `whole` is the step that it goes on from.
    pub(super) fn new(writer: Checkpointer, job: &Job, config: &str, whole: Option<u64>) -> Self {
        let text = job.source.text();
        let characters = |set: &crate::data::TextSet| set.vocabulary().iter().collect();
        Self {
            writer: writer.keep(job.recipe.checkpoint_keep),
            every: job.recipe.checkpoint_every,
            config: config.to_owned(),
            vocabulary: text.map(|(set, _)| characters(set)),
            asked: None,
            whole,
            failed: None,
        }
    }

    /// The folder of a run's checkpoints, which no other process may write to.
    pub(super) fn open(run: &Path) -> Result<Checkpointer, Failure> {
        Checkpointer::new(run.join(FOLDER)).map_err(failed_checkpoint)
    }

    /// Whether the run is to be saved after this step, which is or is not its last.
    pub(super) fn due(&self, step: usize, last: bool) -> bool {
        self.every > 0 && (last || step.is_multiple_of(self.every))
    }

    /// The step of the last one that was tried.
    pub(super) fn asked(&self) -> Option<usize> {
        self.asked
    }

    /// Copies everything; the rest is done while training goes on. It takes the place of
    /// the one before when the next step has shown that it is good: see
    /// [`Checkpoints::approve`].
    ///
    /// # Errors
    /// Training is to end.
    pub(super) fn save(
        &mut self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        step: usize,
        data: Value,
    ) -> Result<(), Failure> {
        self.settle()?;
        let extras = self.extras(pipe, step, data);
        self.asked = Some(step);
        let saved = self.writer.save_held(pipe, optimizer, extras);
        saved.or_else(|error| self.failed(error))
    }

    /// Saves a run that goes on in another folder, before anything there says that it is
    /// one: whoever goes on with it later is to go on from here, not from the beginning.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn save_first(
        &mut self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        step: usize,
        data: Value,
    ) -> Result<(), Failure> {
        let extras = self.extras(pipe, step, data);
        self.asked = Some(step);
        let saved = self.writer.save(pipe, optimizer, extras);
        let saved = saved.and_then(|()| self.writer.finish());
        self.done(saved.map_err(failed_checkpoint)?);
        Ok(())
    }

    fn extras(&self, pipe: &Pipeline, step: usize, data: Value) -> Extras {
        let mut extras = Extras::new(step as u64)
            .config(&self.config)
            .part(DATA, data);
        if let Some(characters) = &self.vocabulary {
            extras = extras.part(VOCABULARY, characters.as_str());
        }
        if let Some(scale) = pipe.loss_scale_state() {
            extras = extras.part(LOSS_SCALE, scale);
        }
        extras
    }

    /// A step after the last one that was saved has a finite loss.
    pub(super) fn approve(&mut self) {
        self.writer.approve();
    }

    /// Warns of what has failed by now, without waiting.
    ///
    /// # Errors
    /// Training is to end.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        let saved = self.writer.check();
        self.take(saved)
    }

    /// Waits for the last one, which takes its place.
    ///
    /// # Errors
    /// Training is to end.
    pub(super) fn settle(&mut self) -> Result<(), Failure> {
        let saved = self.writer.finish();
        self.take(saved)
    }

    /// That the last one is whole, after [`Checkpoints::settle`].
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn is_saved(&mut self) -> Result<(), Failure> {
        let Some(error) = self.failed.take() else {
            return Ok(());
        };
        Err(Failure::Run(anyhow::anyhow!(
            "the last checkpoint, of step {}, could not be written: {error}{}",
            self.asked.unwrap_or_default(),
            self.newest()
        )))
    }

    /// What to do where the loss of `step` is not finite. The checkpoint that has not been
    /// followed by a finite one is dropped: nothing can go on from it.
    ///
    /// # Errors
    /// There is more to say: see [`Checkpoints::settle`].
    pub(super) fn instead(&mut self, step: usize) -> Result<String, Failure> {
        let saved = self.writer.discard();
        self.take(saved)?;
        Ok(match self.whole {
            Some(whole) if whole + 1 == step as u64 => self.before(whole),
            _ => format!("try a smaller --lr{}", self.go_on()),
        })
    }

    /// Where the weights that a run went on from are what is wrong.
    fn before(&self, whole: u64) -> String {
        let all = Checkpoint::list(self.writer.folder()).unwrap_or_default();
        let named = all.iter().find(|one| one.step == whole);
        let older = all.iter().rev().find(|one| one.step < whole);
        let said = format!(
            "this is the first step after the checkpoint of step {whole}, so a smaller --lr does not \
             help it"
        );
        match (named, older) {
            (Some(named), Some(older)) => format!(
                "{said}; where nothing else was changed, move {} away, and `train --resume {}` goes on \
                 after step {}",
                named.path.display(),
                self.run().display(),
                older.step
            ),
            _ => format!("{said}; where nothing else was changed, begin anew with a smaller one"),
        }
    }

    /// How to go on with a smaller learning rate, if one can.
    fn go_on(&self) -> String {
        self.whole.map_or_else(String::new, |whole| {
            format!(
                ", such as with `train --resume {} --lr RATE`, which goes on after step {whole}",
                self.run().display()
            )
        })
    }

    /// The run folder.
    fn run(&self) -> &Path {
        let folder = self.writer.folder();
        folder.parent().unwrap_or(folder)
    }

    fn take(&mut self, saved: Result<Option<Saved>, CheckpointError>) -> Result<(), Failure> {
        match saved {
            Ok(saved) => {
                self.done(saved);
                Ok(())
            }
            Err(error) => self.failed(error),
        }
    }

    fn done(&mut self, saved: Option<Saved>) {
        if let Some(saved) = saved {
            self.whole = Some(saved.step);
            self.failed = None;
        }
    }

    /// Whether that is a reason to end. If not there is a warning, even where nothing else
    /// is said: whoever is away for a week must find it.
    fn failed(&mut self, error: CheckpointError) -> Result<(), Failure> {
        let asked = self.asked.unwrap_or_default();
        match error {
            CheckpointError::Lost { .. } => Err(failed_checkpoint(error)),
            CheckpointError::NotFinite { what, name, .. } => {
                let stays = match self.whole {
                    Some(whole) => format!("; the checkpoint of step {whole} stays as it is"),
                    None => String::new(),
                };
                Err(Failure::Run(anyhow::anyhow!(
                    "after the update of step {asked} {what} `{name}` is not finite, so it was not \
                     saved{stays}: try a smaller --lr{}",
                    self.go_on()
                )))
            }
            error => {
                say(&format!(
                    "warning: the checkpoint of step {asked} could not be written: {error}; training \
                     goes on, and the next checkpoint is tried as ever{}",
                    self.newest()
                ));
                self.failed = Some(error);
                Ok(())
            }
        }
    }

    fn newest(&self) -> String {
        match self.whole {
            Some(step) => format!(" (the newest whole one is of step {step})"),
            None => " (there is no whole one)".to_owned(),
        }
    }
}
