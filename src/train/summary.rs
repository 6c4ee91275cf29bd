//! Summary of a run.

use std::path::PathBuf;

use serde::Serialize;

use super::outcome::{Ended, Outcome, is_short};
use crate::metrics::{Interval, StepMetrics};
use gpipe_data::Diagnosis;

/// Summary of a run, for programs: printed by `gpipe-rs train --json`. Speeds cover the steps since the
/// run was started or resumed, as it may have had other devices before. Rates are over elapsed time;
/// fields with `median` in their names, bubbles and `host_share` are medians of steps.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The last step with a line of metrics.
    pub steps: u64,
    /// Loss of the first step; NaN without any.
    pub loss_first: f64,
    /// Loss of the last step.
    pub loss_last: f64,
    /// Held-out loss, if there is held-out data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_loss: Option<f64>,
    /// Share of held-out targets that equal the class of the largest output, 0 to 1, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_accuracy: Option<f64>,
    /// Lowest held-out loss, if there were evaluations during training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_held_out_loss: Option<f64>,
    /// Step of the lowest held-out loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_step: Option<u64>,
    /// Updates of this call that were skipped because the loss or gradients were not finite.
    #[serde(skip_serializing_if = "is_none")]
    pub skipped_updates: usize,
    /// Whether early stopping ended the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub early_stopped: bool,
    /// Seconds from the start of training to the results of the last step, including loading,
    /// evaluations and checkpoints in between.
    pub elapsed_s: f64,
    /// Samples per second of elapsed time.
    pub samples_per_s: f64,
    /// Tokens per second, if samples are token sequences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// Milliseconds of a step, including its update.
    pub step_ms_median: f64,
    /// Share of the elapsed time spent waiting for batches, 0 to 1.
    pub input_wait: f64,
    /// Diagnosis of what limits the run as far as its input is concerned, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Diagnosis>,
    /// Model FLOP/s utilisation, 0 to 1, if the operations per sample and the devices' peak are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// On asynchronous devices: [`StepMetrics::host_share`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_share: Option<f64>,
    /// Average number of cores used by other programs, if the system reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_programs_cores: Option<f64>,
    /// Idle share of device time, 0 to 1.
    pub bubble_measured: f64,
    /// Idle share by the schedule alone.
    pub bubble_predicted: f64,
    /// The schedule's name.
    pub schedule: String,
    /// Stages per device.
    pub chunks: usize,
    /// Recompute setting, in a word.
    pub recompute: String,
    /// Memory of activations in the last step, per device.
    pub memory: Vec<DeviceMemory>,
    /// The run folder.
    pub run_dir: PathBuf,
    /// The plan's prediction of a step's forward and backward, if there is a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_ms: Option<f64>,
    /// Milliseconds from the start of a step's first action to the end of its last.
    pub makespan_ms_median: f64,
}

/// Memory of activations on one device, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct DeviceMemory {
    /// Peak.
    pub peak: u64,
    /// Peak between actions: memory of micro-batches in flight.
    pub held: u64,
    /// Predicted value of `held`.
    pub predicted: u64,
}

impl Outcome {
    /// Returns the summary.
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

    /// Returns the interval of all steps of this call; if it did none, of the whole run.
    fn interval(&self) -> Interval {
        let mut interval = Interval::default();
        self.measured().iter().for_each(|step| interval.add(step));
        interval
    }

    /// Returns the median of a metric over the steps of this call; if it did none, over the whole run.
    /// NaN without any.
    pub fn median(&self, number: impl Fn(&StepMetrics) -> f64) -> f64 {
        median(self.measured().iter().map(number)).unwrap_or(f64::NAN)
    }
}

impl Summary {
    /// Whether the time between the passes of a step matters, which no prediction includes.
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
