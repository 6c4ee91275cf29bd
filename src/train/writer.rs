//! Writes into a run folder that this process has locked.

use super::error::TrainError;
use super::folder::RunFolder;
use super::hook::Hooks;
use crate::metrics::{METRICS_FILE, MetricsError, RunMetrics, StepMetrics};

/// The files that grow with a run.
#[derive(Debug)]
pub(super) struct RunWriter {
    pub(super) folder: RunFolder,
    /// None where another process writes.
    metrics: Option<RunMetrics>,
    /// Whether metrics wait for room on the disk.
    owes: bool,
    /// What is yet to be written down of a run that resumes: see [`RunWriter::confirm`].
    config: Option<String>,
}

impl RunWriter {
    /// Writes the configuration into a folder that is claimed.
    pub(super) fn create(folder: RunFolder, config: &str) -> Result<Self, TrainError> {
        folder.write_config(config)?;
        let metrics = RunMetrics::create(folder.path())?;
        Ok(Self::new(folder, metrics))
    }

    /// Resumes in the folder after `step`: what came after it is cut off.
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

    /// Writes down the configuration of a run that has resumed, and has gone on well.
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

    /// Has a folder that is claimed go on with what another run had come to after `step`.
    ///
    /// `save` makes its first checkpoint. Before that it is no run folder, and can be
    /// claimed again; after it all is there that a run resumes from: a process that is
    /// killed leaves nothing that would begin anew.
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

    /// Of a run whose files another process writes.
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

    /// Writes what a step came to; it is in the files when this returns, so that a killed
    /// run has lost none. Where there is no room it is written later, with a warning.
    pub(super) fn step(&mut self, metrics: &StepMetrics, hooks: &mut Hooks<'_>) {
        let Some(own) = &mut self.metrics else {
            return;
        };
        let written = own.step(metrics);
        self.look(written, hooks);
    }

    /// Writes what more is known of the last step.
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

    /// Has on the disk what was written, before a checkpoint says that it is.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn sync(&mut self) -> Result<(), TrainError> {
        let Some(own) = &mut self.metrics else {
            return Ok(());
        };
        own.flush()?;
        Ok(own.sync()?)
    }
}

/// What is said of steps up to `done` that have no line: a power cut may keep a checkpoint
/// and lose the lines of steps before it.
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
