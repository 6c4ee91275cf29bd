//! The metrics files of a run.

use std::collections::VecDeque;
use std::path::Path;

use super::step::{ACCURACY, HELD_OUT};
use super::{EventFile, JsonLines, MetricsError, StepMetrics};

/// The file of JSON lines in a run's folder.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// Writes each step to `metrics.jsonl`, and to a TensorBoard event file beside it.
///
/// Metrics that cannot be written, for example on a full disk, are kept and written later.
#[derive(Debug)]
pub struct RunMetrics {
    lines: JsonLines,
    events: EventFile,
    /// Steps not yet in `metrics.jsonl`.
    owed_lines: VecDeque<StepMetrics>,
    /// Steps not yet in the event file.
    owed_events: VecDeque<StepMetrics>,
}

impl RunMetrics {
    /// Creates the files of a new run.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn create(folder: &Path) -> Result<Self, MetricsError> {
        let lines = JsonLines::create(&folder.join(METRICS_FILE))?;
        Ok(Self::new(lines, EventFile::create(folder)?))
    }

    /// Continues after `step`, the last valid one; 0 for none. Later steps are cut off the files, so
    /// that each step occurs once.
    ///
    /// # Errors
    /// As [`JsonLines::resume`] and [`EventFile::resume`].
    pub fn resume(folder: &Path, step: u64) -> Result<Self, MetricsError> {
        let lines = JsonLines::resume(&folder.join(METRICS_FILE), step)?;
        Ok(Self::new(lines, EventFile::resume(folder, step)?))
    }

    fn new(lines: JsonLines, events: EventFile) -> Self {
        Self {
            lines,
            events,
            owed_lines: VecDeque::new(),
            owed_events: VecDeque::new(),
        }
    }

    /// Writes a step to both files; it is in the files when this returns.
    ///
    /// # Errors
    /// [`MetricsError::Io`]: the next call, or [`RunMetrics::flush`], first writes it again.
    pub fn step(&mut self, step: &StepMetrics) -> Result<(), MetricsError> {
        self.owed_lines.push_back(step.clone());
        self.owed_events.push_back(step.clone());
        self.flush()
    }

    /// Replaces the last step, as its held-out loss is now known.
    ///
    /// # Errors
    /// As [`RunMetrics::step`].
    pub fn amend(&mut self, step: &StepMetrics) -> Result<(), MetricsError> {
        let lines = match self.owed_lines.back_mut() {
            Some(owed) => {
                step.clone_into(owed);
                Ok(())
            }
            None => self.lines.amend(step).inspect_err(|_| {
                self.owed_lines.push_back(step.clone());
            }),
        };
        match (self.owed_events.back_mut(), step.held_out_loss) {
            (Some(owed), _) => step.clone_into(owed),
            (None, Some(loss)) => {
                let accuracy = step.held_out_accuracy.map(|own| (ACCURACY.to_owned(), own));
                let loss = (HELD_OUT.to_owned(), loss);
                let scalars: Vec<_> = [loss].into_iter().chain(accuracy).collect();
                self.events.scalars(step.step, &scalars)?;
            }
            (None, None) => {}
        }
        lines
    }

    /// Writes steps that could not be written before.
    ///
    /// # Errors
    /// [`MetricsError::Io`]: they still cannot be written.
    pub fn flush(&mut self) -> Result<(), MetricsError> {
        let lines = self.owed_lines_written();
        while let Some(step) = self.owed_events.front() {
            self.events.scalars(step.step, &step.scalars())?;
            self.owed_events.pop_front();
        }
        lines
    }

    fn owed_lines_written(&mut self) -> Result<(), MetricsError> {
        while let Some(step) = self.owed_lines.front() {
            self.lines.step(step)?;
            self.owed_lines.pop_front();
        }
        Ok(())
    }

    /// Like [`JsonLines::sync`], for both files.
    ///
    /// # Errors
    /// [`MetricsError::Io`].
    pub fn sync(&self) -> Result<(), MetricsError> {
        self.lines.sync()?;
        self.events.sync()
    }
}
