//! The files of metrics of a run.

use std::path::Path;

use super::{EventFile, JsonLines, MetricsError, StepMetrics};

/// The file of JSON lines in a run's folder.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// Writes each step as a line of `metrics.jsonl` and to a TensorBoard event file beside it.
#[derive(Debug)]
pub struct RunMetrics {
    lines: JsonLines,
    events: EventFile,
}

impl RunMetrics {
    /// The files of a new run.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn create(folder: &Path) -> Result<Self, MetricsError> {
        Ok(Self {
            lines: JsonLines::create(&folder.join(METRICS_FILE))?,
            events: EventFile::create(folder)?,
        })
    }

    /// Goes on after `step`, the last one that counts; with 0, none does. What is there of
    /// later steps is cut off, so that each step is there once.
    ///
    /// # Errors
    /// As [`JsonLines::resume`] and [`EventFile::resume`].
    pub fn resume(folder: &Path, step: u64) -> Result<Self, MetricsError> {
        Ok(Self {
            lines: JsonLines::resume(&folder.join(METRICS_FILE), step)?,
            events: EventFile::resume(folder, step)?,
        })
    }

    /// Writes a step to both; it is in the files when this returns.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn step(&mut self, step: &StepMetrics) -> Result<(), MetricsError> {
        self.lines.step(step)?;
        self.events.scalars(step.step, &step.scalars())
    }

    /// As [`JsonLines::sync`], for both.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn sync(&self) -> Result<(), MetricsError> {
        self.lines.sync()?;
        self.events.sync()
    }
}
