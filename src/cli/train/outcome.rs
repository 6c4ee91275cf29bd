//! What a run came to.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Failure;
use super::job::Job;
use super::memory::{self, DeviceMemory};
use crate::MemoryReport;
use crate::cli::output;
use crate::cli::plan::limit;
use crate::metrics::{StepMetrics, speed};

/// What `--json` prints; times and rates are medians over the steps.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    model: &'a str,
    data: String,
    steps: usize,
    loss_first: f64,
    loss_last: f64,
    /// Of texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_out_loss: Option<f64>,
    samples_per_s: f64,
    /// Where a sample is a sequence of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_s: Option<f64>,
    step_ms_median: f64,
    /// Share of the time that batches were waited for.
    input_wait: f64,
    /// Where the devices' peak is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    mfu: Option<f64>,
    /// Where devices work by themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_share: Option<f64>,
    bubble_measured: f64,
    bubble_predicted: f64,
    schedule: &'static str,
    chunks: usize,
    recompute: String,
    /// Of activations in the last step, one entry a device.
    memory: Vec<DeviceMemory>,
    run_dir: &'a Path,
    /// What the plan predicted, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    planned_ms: Option<f64>,
    /// From the begin of a step's first action to the end of its last.
    makespan_ms_median: f64,
}

/// The numbers that are printed at the end.
#[derive(Debug)]
pub(super) struct Outcome {
    records: Vec<StepMetrics>,
    run_dir: PathBuf,
    /// Per token; of a text, that is a character.
    pub(super) held_out_loss: Option<f64>,
    pub(super) sample: Option<String>,
    /// The last step beside its prediction, as text.
    pub(super) comparison: String,
    /// Of the last step.
    pub(super) memory: Option<MemoryReport>,
    /// Whether the files about the last step could be written.
    pub(super) files: Result<(), Failure>,
}

impl Outcome {
    /// With the steps that the run had done before.
    pub(super) fn new(run_dir: &Path, records: Vec<StepMetrics>) -> Self {
        Self {
            records,
            run_dir: run_dir.to_owned(),
            held_out_loss: None,
            sample: None,
            comparison: String::new(),
            memory: None,
            files: Ok(()),
        }
    }

    pub(super) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    pub(super) fn add(&mut self, record: &StepMetrics) {
        self.records.push(record.clone());
    }

    pub(super) fn print(&self, job: &Job) -> Result<(), Failure> {
        let summary = self.summary(job);
        if job.args.json {
            return output::print(&(serde_json::to_string(&summary)? + "\n"));
        }
        output::print(&self.text(job, &summary))
    }

    fn summary<'a>(&'a self, job: &'a Job) -> Summary<'a> {
        let loss = |record: Option<&StepMetrics>| record.map_or(f64::NAN, |record| record.loss);
        let samples_per_s = self.median(|record| record.samples_per_s);
        let memory = self.memory.as_ref().map(memory::devices);
        Summary {
            model: job.chosen.spec.name(),
            data: job.source.name(),
            // Lines of earlier steps may be lost.
            steps: self.records.last().map_or(0, |record| record.step as usize),
            loss_first: loss(self.records.first()),
            loss_last: loss(self.records.last()),
            held_out_loss: self.held_out_loss,
            samples_per_s,
            tokens_per_s: job.tokens.map(|tokens| tokens as f64 * samples_per_s),
            step_ms_median: self.median(|record| record.step_ms),
            input_wait: self.median(|record| record.input_wait.unwrap_or_default()),
            mfu: job.utilisation.as_ref().map(|own| own.at(samples_per_s)),
            host_share: self.host_share(),
            bubble_measured: self.median(|record| record.bubble_measured),
            bubble_predicted: self.median(|record| record.bubble_predicted),
            schedule: job.recipe.schedule.name(),
            chunks: job.recipe.chunks(),
            recompute: job.recipe.recompute.to_string(),
            memory: memory.unwrap_or_default(),
            run_dir: &self.run_dir,
            planned_ms: job.plan.as_ref().map(|plan| plan.step.get() / 1e3),
            makespan_ms_median: self.median(|record| record.makespan_ms),
        }
    }

    fn text(&self, job: &Job, numbers: &Summary<'_>) -> String {
        let sample = self.sample.as_ref();
        let sample = sample.map_or_else(String::new, |sample| format!("\n{sample}\n"));
        let held_out = numbers.held_out_loss.map_or_else(String::new, |loss| {
            let unit = if job.source.text().is_some() {
                "character"
            } else {
                "token"
            };
            format!("held-out loss  {loss:.4} per {unit}\n")
        });
        let makespan = numbers.makespan_ms_median;
        let planned = numbers.planned_ms.map_or_else(String::new, |planned| {
            format!(
                "plan           {planned:.1} ms predicted, {makespan:.1} ms measured for forward and \
                 backward (ratio {:.3})\n",
                planned / makespan
            )
        });
        let mfu = numbers.mfu.map_or_else(String::new, |share| {
            format!(
                "utilisation    {:.2} % of the devices' peak\n",
                share * 100.0
            )
        });
        format!(
            "{sample}\nthe last step:\n\n{comparison}\n\
             loss           {first:.4} at step {begin}, {last:.4} at step {end}\n\
             {held_out}\
             speed          {speed}, {step_ms:.1} ms a step (medians)\n\
             input          {wait:.1} % of the time waited for\n\
             {mfu}\
             {host}\
             bubble         {measured:.1} % measured, {predicted:.1} % predicted\n\
             {memory}\
             {planned}\
             run folder     {run}\n",
            host = host(numbers.host_share),
            comparison = self.comparison,
            first = numbers.loss_first,
            last = numbers.loss_last,
            begin = self
                .records
                .first()
                .map_or(0, |record| record.step as usize),
            end = self.records.last().map_or(0, |record| record.step as usize),
            speed = speed(numbers.samples_per_s, numbers.tokens_per_s),
            step_ms = numbers.step_ms_median,
            wait = numbers.input_wait * 100.0,
            measured = numbers.bubble_measured * 100.0,
            predicted = numbers.bubble_predicted * 100.0,
            memory = memory::text(self.memory.as_ref()),
            run = self.run_dir.display(),
        )
    }

    /// Of the steps of which it is known.
    fn host_share(&self) -> Option<f64> {
        let known = self.records.iter().filter_map(|record| record.host_share);
        let mut known: Vec<f64> = known.collect();
        known.sort_by(f64::total_cmp);
        known.get(known.len() / 2).copied()
    }

    fn median(&self, number: impl Fn(&StepMetrics) -> f64) -> f64 {
        let mut numbers: Vec<f64> = self.records.iter().map(number).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// How busy the host was, and whether devices waited for it.
fn host(share: Option<f64>) -> String {
    let verdict = limit::host_bound(share).map(|verdict| format!("limit          {verdict}\n"));
    let share = share.map(|share| {
        format!(
            "host           {:.1} % of the devices' time busy telling them what to do\n",
            share * 100.0
        )
    });
    share.unwrap_or_default() + &verdict.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_devices_wait_for_is_named() {
        assert_eq!(host(None), "");
        let idle = host(Some(0.125));
        assert_eq!(
            idle,
            "host           12.5 % of the devices' time busy telling them what to do\n"
        );
        let busy = host(Some(0.95));
        assert!(
            busy.contains("limit          host-bound: telling the devices"),
            "{busy}"
        );
        assert!(busy.contains("takes 95 % of"), "{busy}");
    }

    #[test]
    fn the_hosts_share_is_the_median_of_the_steps_that_have_one() {
        let of = |shares: &[Option<f64>]| {
            let record = |share: &Option<f64>| StepMetrics {
                host_share: *share,
                ..StepMetrics::default()
            };
            Outcome::new(Path::new("run"), shares.iter().map(record).collect()).host_share()
        };
        assert_eq!(of(&[None, None]), None);
        assert_eq!(of(&[Some(0.5), None, Some(0.1), Some(0.2)]), Some(0.2));
    }
}
