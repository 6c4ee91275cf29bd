//! Writes to a run folder locked by this process.

use super::error::TrainError;
use super::folder::RunFolder;
use super::hook::Hooks;
use crate::metrics::{METRICS_FILE, MetricsError, RunMetrics, StepMetrics};

/// The files that grow during a run.
#[derive(Debug)]
pub(super) struct RunWriter {
    pub(super) folder: RunFolder,
    /// `None` if another process writes.
    metrics: Option<RunMetrics>,
    /// Whether metrics are waiting for disk space.
    owes: bool,
    /// Configuration of a resumed run, still to be written: see [`RunWriter::confirm`].
    config: Option<String>,
}

impl RunWriter {
    /// Writes the configuration to a claimed folder.
    pub(super) fn create(folder: RunFolder, config: &str) -> Result<Self, TrainError> {
        folder.write_config(config)?;
        let metrics = RunMetrics::create(folder.path())?;
        Ok(Self::new(folder, metrics))
    }

    /// Resumes in the folder after `step`: later steps are cut off.
    pub(super) fn resume(folder: RunFolder, config: &str, step: u64) -> Result<Self, TrainError> {
        let metrics = RunMetrics::resume(folder.path(), step)?;
        let mut writer = Self::new(folder, metrics);
        if writer.folder.config_path().exists() {
            writer.config = Some(config.to_owned());
        } else {
            writer.folder.write_config(config)?;
        }
        Ok(writer)
    }

    /// Writes the configuration of a resumed run that works.
    pub(super) fn confirm(&mut self, hooks: &mut Hooks<'_>) {
        let Some(config) = self.config.take() else {
            return;
        };
        if let Err(error) = self.folder.write_config(&config) {
            hooks.warning(&format!(
                "{error}; the run goes on, and its checkpoints have it"
            ));
        }
    }

    /// Continues another run's results after `step` in a claimed folder.
    ///
    /// `save` makes its first checkpoint. Before that, the folder is not a run and can be claimed
    /// again; after that, everything needed for resuming is there, so a killed process leaves nothing
    /// that would restart.
    pub(super) fn fork(
        folder: RunFolder,
        from: &RunFolder,
        config: &str,
        step: u64,
        save: impl FnOnce() -> Result<(), TrainError>,
    ) -> Result<Self, TrainError> {
        folder.copy_metrics(from)?;
        let metrics = RunMetrics::resume(folder.path(), step)?;
        metrics.sync()?;
        save()?;
        folder.write_config(config)?;
        Ok(Self::new(folder, metrics))
    }

    /// A writer for a process whose files another one writes.
    pub(super) fn elsewhere(folder: RunFolder) -> Self {
        Self {
            folder,
            metrics: None,
            owes: false,
            config: None,
        }
    }

    /// Whether this process writes the run's files.
    pub(super) fn is_here(&self) -> bool {
        self.metrics.is_some()
    }

    fn new(folder: RunFolder, metrics: RunMetrics) -> Self {
        Self {
            folder,
            metrics: Some(metrics),
            owes: false,
            config: None,
        }
    }

    /// Writes the metrics of a step; they are in the files when this returns, so that a killed run
    /// loses none. Without disk space they are written later, with a warning.
    pub(super) fn step(&mut self, metrics: &StepMetrics, hooks: &mut Hooks<'_>) {
        let Some(own) = &mut self.metrics else {
            return;
        };
        let written = own.step(metrics);
        self.look(written, hooks);
    }

    /// Updates the metrics of the last step.
    pub(super) fn amend(&mut self, metrics: &StepMetrics, hooks: &mut Hooks<'_>) {
        let Some(own) = &mut self.metrics else {
            return;
        };
        let written = own.amend(metrics);
        self.look(written, hooks);
    }

    fn look(&mut self, written: Result<(), MetricsError>, hooks: &mut Hooks<'_>) {
        let owed = std::mem::replace(&mut self.owes, written.is_err());
        match written {
            Err(error) if !owed => hooks.warning(&format!(
                "{error}; training goes on, and the metrics are written when they can be"
            )),
            _ => {}
        }
    }

    /// Syncs written metrics to the disk, before a checkpoint refers to them.
    ///
    /// # Errors
    /// They cannot be written.
    pub(super) fn sync(&mut self) -> Result<(), TrainError> {
        let Some(own) = &mut self.metrics else {
            return Ok(());
        };
        own.flush()?;
        Ok(own.sync()?)
    }
}

/// Describes steps up to `done` without metrics: a power failure may keep a checkpoint and lose lines
/// of steps before it.
pub(super) fn missing(records: &[StepMetrics], done: u64) -> Option<String> {
    let mut gaps = Vec::new();
    let mut next = 1;
    let ends = records.iter().map(|record| record.step).chain([done + 1]);
    for step in ends.filter(|step| *step <= done + 1) {
        if step > next {
            gaps.push(match step - 1 - next {
                0 => format!("step {next}"),
                _ => format!("steps {next} to {}", step - 1),
            });
        }
        next = next.max(step + 1);
    }
    (!gaps.is_empty()).then(|| {
        format!(
            "{METRICS_FILE} has no lines of {}; the checkpoint has the weights of all {done} steps",
            gaps.join(", ")
        )
    })
}
