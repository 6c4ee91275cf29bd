//! When a run is saved, and what becomes of a checkpoint that cannot be written.

use std::path::Path;

use serde_json::Value;

use super::Failure;
use super::job::Job;
use crate::checkpoint::{CheckpointError, Checkpointer, Extras};
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
/// and the next one is tried as ever.
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

    /// The step of the newest one that is known to be whole.
    pub(super) fn whole(&self) -> Option<u64> {
        self.whole
    }

    /// Copies everything; the rest is done while training goes on.
    pub(super) fn save(
        &mut self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        step: usize,
        data: Value,
    ) {
        self.settle();
        let mut extras = Extras::new(step as u64)
            .config(&self.config)
            .part(DATA, data);
        if let Some(characters) = &self.vocabulary {
            extras = extras.part(VOCABULARY, characters.as_str());
        }
        if let Some(scale) = pipe.loss_scale_state() {
            extras = extras.part(LOSS_SCALE, scale);
        }
        self.asked = Some(step);
        if let Err(error) = self.writer.save(pipe, optimizer, extras) {
            self.warn(error);
        }
    }

    /// Warns of what has failed by now, without waiting.
    pub(super) fn look(&mut self) {
        match self.writer.check() {
            Ok(saved) => self.done(saved.map(|saved| saved.step)),
            Err(error) => self.warn(error),
        }
    }

    /// Waits for the last one.
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.settle();
        let Some(error) = self.failed.take() else {
            return Ok(());
        };
        Err(Failure::Run(anyhow::anyhow!(
            "the last checkpoint, of step {}, could not be written: {error}{}",
            self.asked.unwrap_or_default(),
            self.newest()
        )))
    }

    fn settle(&mut self) {
        match self.writer.finish() {
            Ok(saved) => self.done(saved.map(|saved| saved.step)),
            Err(error) => self.warn(error),
        }
    }

    fn done(&mut self, step: Option<u64>) {
        if step.is_some() {
            self.whole = step;
            self.failed = None;
        }
    }

    /// Even where nothing else is said: whoever is away for a week must find it.
    fn warn(&mut self, error: CheckpointError) {
        say(&format!(
            "warning: the checkpoint of step {} could not be written: {error}; training goes on, and \
             the next checkpoint is tried as ever{}",
            self.asked.unwrap_or_default(),
            self.newest()
        ));
        self.failed = Some(error);
    }

    fn newest(&self) -> String {
        match self.whole {
            Some(step) => format!(" (the newest whole one is of step {step})"),
            None => " (there is no whole one)".to_owned(),
        }
    }
}
