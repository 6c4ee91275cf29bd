//! The numbers of a whole run.

use std::path::PathBuf;

use serde::Serialize;

use super::outcome::{Ended, Outcome, is_short};
use crate::metrics::{Interval, StepMetrics};
use gpipe_data::Diagnosis;

/// The numbers of a whole run, for programs: what `gpipe-rs train --json` prints of it. Those of
/// its speed are of the steps since the run began or was resumed: before it may have had other devices.
/// Rates are over the elapsed time, and what `median` names, bubbles and `host_share` are medians of
/// steps.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The last step of which there is a line.
    pub steps: u64,
    /// Of the first step; NaN without any.
    pub loss_first: f64,
    /// Of the last step.
    pub loss_last: f64,
    /// Where something was held out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_loss: Option<f64>,
    /// The share of held-out targets that are the class of the largest output, 0 to 1, where that
    /// is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_accuracy: Option<f64>,
    /// The lowest held-out loss while it trained, where it was evaluated then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_held_out_loss: Option<f64>,
    /// The step after which it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_step: Option<u64>,
    /// Updates of this call that were skipped, as the loss or gradients were not finite.
    #[serde(skip_serializing_if = "is_none")]
    pub skipped_updates: usize,
    /// Whether it ended before its last step, as no evaluation was better than the best one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub early_stopped: bool,
    /// Seconds from the begin of training to the numbers of the last step: loading, evaluations and
    /// checkpoints in between count.
    pub elapsed_s: f64,
    /// Samples trained on by the elapsed time.
    pub samples_per_s: f64,
    /// Where a sample is a sequence of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// Milliseconds of a step, its update with it.
    pub step_ms_median: f64,
    /// Share of the elapsed time in which batches were waited for, 0 to 1.
    pub input_wait: f64,
    /// What holds the run back as far as its input is concerned, where that is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Diagnosis>,
    /// Model FLOP/s utilisation, where it is known what a sample takes and what the devices can
    /// do, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Where devices are asynchronous: [`StepMetrics::host_share`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_share: Option<f64>,
    /// Cores that other programs used, on average, where the system tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_programs_cores: Option<f64>,
    /// Idle share of device time, 0 to 1.
    pub bubble_measured: f64,
    /// The same as the schedule alone costs it.
    pub bubble_predicted: f64,
    /// The schedule's name.
    pub schedule: String,
    /// Stages of each device.
    pub chunks: usize,
    /// What is computed twice, in a word.
    pub recompute: String,
    /// Of activations in the last step, one entry a device.
    pub memory: Vec<DeviceMemory>,
    /// The run folder.
    pub run_dir: PathBuf,
    /// What the plan predicted for a step's forward and backward, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_ms: Option<f64>,
    /// Milliseconds from the begin of a step's first action to the end of its last.
    pub makespan_ms_median: f64,
}

/// What activations took on one device, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct DeviceMemory {
    /// At any time.
    pub peak: u64,
    /// Between two actions: what micro-batches in flight held.
    pub held: u64,
    /// What `held` is on paper.
    pub predicted: u64,
}

impl Outcome {
    /// The numbers of the whole run.
    pub fn summary(&self) -> Summary {
        let (first, last) = (self.records.first(), self.records.last());
        let loss = |record: Option<&StepMetrics>| record.map_or(f64::NAN, |record| record.loss);
        let interval = self.interval();
        let samples_per_s = interval.samples_per_s();
        let devices = self.memory.iter().flat_map(|memory| &memory.devices);
        let memory = devices.map(|used| DeviceMemory {
            peak: used.peak.0,
            held: used.held.0,
            predicted: used.predicted.0,
        });
        Summary {
            steps: self.steps(),
            loss_first: loss(first),
            loss_last: loss(last),
            held_out_loss: self.held_out_loss,
            held_out_accuracy: self.held_out_accuracy,
            best_held_out_loss: self.best.map(|best| best.loss),
            best_step: self.best.map(|best| best.step),
            skipped_updates: self.measured().iter().filter(|step| step.skipped).count(),
            early_stopped: matches!(self.ended, Ended::EarlyStopped { .. }),
            elapsed_s: interval.elapsed_s(),
            samples_per_s,
            tokens_per_s: self.rates.tokens_per_s(samples_per_s),
            step_ms_median: self.median(|record| record.step_ms),
            input_wait: interval.input_wait(),
            input: self.input.clone(),
            mfu: self.rates.mfu(samples_per_s),
            host_share: median(
                self.measured()
                    .iter()
                    .filter_map(|record| record.host_share),
            ),
            other_programs_cores: self.others.map(|others| others.used),
            bubble_measured: self.median(|record| record.bubble_measured),
            bubble_predicted: self.median(|record| record.bubble_predicted),
            schedule: self.schedule.clone(),
            chunks: self.chunks,
            recompute: self.recompute.to_string(),
            memory: memory.collect(),
            run_dir: self.folder.clone(),
            planned_ms: self.planned_ms,
            makespan_ms_median: self.median(|record| record.makespan_ms),
        }
    }

    /// All steps of this call together; where it did none, all of the run.
    fn interval(&self) -> Interval {
        let mut interval = Interval::default();
        self.measured().iter().for_each(|step| interval.add(step));
        interval
    }

    /// The median of a number over the steps of this call; where it did none, over all of the run. NaN
    /// without any.
    pub fn median(&self, number: impl Fn(&StepMetrics) -> f64) -> f64 {
        median(self.measured().iter().map(number)).unwrap_or(f64::NAN)
    }
}

impl Summary {
    /// Whether the time between the passes of a step counts, which nothing predicts.
    pub fn is_short(&self) -> bool {
        let bubble = (self.bubble_measured, self.bubble_predicted);
        is_short(bubble, self.step_ms_median)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_none(count: &usize) -> bool {
    *count == 0
}

fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_share_is_the_median_of_the_steps_that_have_one() {
        let of = |shares: &[Option<f64>]| {
            let record = |share: &Option<f64>| StepMetrics {
                host_share: *share,
                ..StepMetrics::default()
            };
            let records = shares.iter().map(record).collect();
            Outcome::new("run".into(), records).summary().host_share
        };
        assert_eq!(of(&[None, None]), None);
        assert_eq!(of(&[Some(0.5), None, Some(0.1), Some(0.2)]), Some(0.2));
    }
}
