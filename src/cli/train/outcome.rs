//! What a run came to.

use std::path::{Path, PathBuf};

use gpipe_partitioner::Plan;
use serde::Serialize;

use super::Failure;
use super::memory::{self, DeviceMemory};
use super::options::Args;
use super::run_folder::StepRecord;
use crate::MemoryReport;
use crate::cli::output;

/// What `--json` prints; times are medians over the steps.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    steps: usize,
    loss_first: f64,
    loss_last: f64,
    held_out_loss: f64,
    tokens_per_s: f64,
    step_ms_median: f64,
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
    records: Vec<StepRecord>,
    run_dir: PathBuf,
    /// Nats per character.
    pub(super) held_out_loss: f64,
    pub(super) sample: Option<String>,
    /// The last step beside its prediction, as text.
    pub(super) comparison: String,
    /// Of the last step.
    pub(super) memory: Option<MemoryReport>,
    /// Whether the files about the last step could be written.
    pub(super) files: Result<(), Failure>,
}

impl Outcome {
    pub(super) fn new(run_dir: &Path) -> Self {
        let run_dir = run_dir.to_owned();
        Self {
            records: Vec::new(),
            run_dir,
            held_out_loss: f64::NAN,
            sample: None,
            comparison: String::new(),
            memory: None,
            files: Ok(()),
        }
    }

    pub(super) fn add(&mut self, record: &StepRecord) {
        self.records.push(record.clone());
    }

    pub(super) fn print(&self, args: &Args, plan: Option<&Plan>) -> Result<(), Failure> {
        let loss = |record: Option<&StepRecord>| record.map_or(f64::NAN, |record| record.loss);
        let (first, last) = (loss(self.records.first()), loss(self.records.last()));
        let tokens_per_s = self.median(|record| record.tokens_per_s);
        let step_ms = self.median(|record| record.step_ms);
        let measured = self.median(|record| record.bubble_measured);
        let predicted = self.median(|record| record.bubble_predicted);
        let makespan = self.median(|record| record.makespan_ms);
        let planned_ms = plan.map(|plan| plan.step.get() / 1e3);
        if args.json {
            let summary = Summary {
                steps: self.records.len(),
                loss_first: first,
                loss_last: last,
                held_out_loss: self.held_out_loss,
                tokens_per_s,
                step_ms_median: step_ms,
                bubble_measured: measured,
                bubble_predicted: predicted,
                schedule: args.schedule.name(),
                chunks: args.chunks(),
                recompute: args.recompute.to_string(),
                memory: self
                    .memory
                    .as_ref()
                    .map(memory::devices)
                    .unwrap_or_default(),
                run_dir: &self.run_dir,
                planned_ms,
                makespan_ms_median: makespan,
            };
            return output::print(&(serde_json::to_string(&summary)? + "\n"));
        }
        let sample = self.sample.as_deref().unwrap_or_default();
        output::print(&format!(
            "\n{sample}\n\nthe last step:\n\n{comparison}\n\
             loss           {first:.4} at step 1, {last:.4} at step {steps}\n\
             held-out loss  {held_out:.4} nats per character\n\
             speed          {tokens_per_s:.0} tokens/s, {step_ms:.1} ms a step (medians)\n\
             bubble         {measured:.1} % measured, {predicted:.1} % predicted\n\
             {memory}\
             {planned}\
             run folder     {run}\n",
            memory = memory::text(self.memory.as_ref()),
            comparison = self.comparison,
            steps = self.records.len(),
            held_out = self.held_out_loss,
            measured = measured * 100.0,
            predicted = predicted * 100.0,
            planned = planned_ms.map_or_else(String::new, |planned| format!(
                "plan           {planned:.1} ms predicted, {makespan:.1} ms measured for forward and \
                 backward (ratio {:.3})\n",
                planned / makespan
            )),
            run = self.run_dir.display(),
        ))
    }

    fn median(&self, number: impl Fn(&StepRecord) -> f64) -> f64 {
        let mut numbers: Vec<f64> = self.records.iter().map(number).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
    }
}
