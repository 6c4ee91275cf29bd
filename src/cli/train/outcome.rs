//! What a run came to.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Failure;
use super::job::Job;
use super::memory::{self, DeviceMemory};
use crate::MemoryReport;
use crate::cli::{limit, output};
use crate::metrics::{StepMetrics, speed};
use crate::profile::others::Others;

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
    /// Cores that other programs used, on average, where the system tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_programs_cores: Option<f64>,
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
    /// What is wrong with the cut, by the times of the last step.
    pub(super) cut: Option<String>,
    /// What other programs took of the cores.
    pub(super) others: Option<Others>,
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
            cut: None,
            others: None,
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
            other_programs_cores: self.others.map(|others| others.used),
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
        let width = output::width(None);
        let sample = self.sample.as_ref();
        let sample = sample.map_or_else(String::new, |sample| {
            format!("\n{}\n", output::wrapped(sample, width))
        });
        let lines = self.lines(job, numbers);
        let lines = lines.iter().map(|(title, text)| line(title, text, width));
        format!(
            "{sample}\nthe last step:\n\n{}\n{}",
            self.comparison,
            lines.collect::<String>()
        )
    }

    /// What is told of the whole run: titles, and what they are about.
    fn lines(&self, job: &Job, numbers: &Summary<'_>) -> Vec<(&'static str, String)> {
        let first = self.records.first();
        let begin = first.map_or(0, |record| record.step as usize);
        let mut lines = vec![(
            "loss",
            format!(
                "{:.4} at step {begin}, {:.4} at step {}",
                numbers.loss_first, numbers.loss_last, numbers.steps
            ),
        )];
        if let Some(loss) = numbers.held_out_loss {
            let text = job.source.text().is_some();
            let unit = if text { "character" } else { "token" };
            lines.push(("held-out loss", format!("{loss:.4} per {unit}")));
        }
        let rate = speed(numbers.samples_per_s, numbers.tokens_per_s);
        let step_ms = numbers.step_ms_median;
        lines.push(("speed", format!("{rate}, {step_ms:.1} ms a step (medians)")));
        let waited = 100.0 * numbers.input_wait;
        lines.push(("input", format!("{waited:.1} % of the time waited for")));
        if let Some(share) = numbers.mfu {
            let share = 100.0 * share;
            lines.push(("utilisation", format!("{share:.2} % of the devices' peak")));
        }
        lines.extend(host(numbers.host_share));
        lines.push((
            "bubble",
            format!(
                "{:.1} % measured, {:.1} % predicted",
                100.0 * numbers.bubble_measured,
                100.0 * numbers.bubble_predicted
            ),
        ));
        lines.extend(self.cut.iter().map(|cut| ("cut", cut.clone())));
        lines.extend(memory::lines(self.memory.as_ref()));
        if let Some(planned) = numbers.planned_ms {
            lines.push(("plan", beside(planned, numbers.makespan_ms_median)));
        }
        lines.push(("run folder", self.run_dir.display().to_string()));
        lines
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

/// Columns before what a line says.
const INDENT: usize = 15;

/// A title and what it is about, which goes on below itself where it is too long.
fn line(title: &str, text: &str, width: usize) -> String {
    let room = width.saturating_sub(INDENT).max(INDENT);
    let text = output::wrapped(text, room);
    let text = text.replace('\n', &format!("\n{:INDENT$}", ""));
    format!("{title:<INDENT$}{text}\n")
}

/// What the plan promised for a step's forward and backward and what they took, in
/// milliseconds.
fn beside(planned: f64, measured: f64) -> String {
    let times = measured / planned;
    format!(
        "{planned:.1} ms predicted, {measured:.1} ms measured for forward and backward, {times:.2} \
         times as long"
    )
}

/// How busy the host was, and whether devices waited for it.
fn host(share: Option<f64>) -> Vec<(&'static str, String)> {
    let busy = share.map(|share| {
        let share = 100.0 * share;
        let said = format!("{share:.1} % of the devices' time busy telling them what to do");
        ("host", said)
    });
    let verdict = limit::host_bound(share).map(|verdict| ("limit", verdict));
    busy.into_iter().chain(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_devices_wait_for_is_named() {
        assert_eq!(host(None), []);
        let idle = host(Some(0.125));
        let said = "12.5 % of the devices' time busy telling them what to do";
        assert_eq!(idle, [("host", said.to_owned())]);
        let busy = host(Some(0.95));
        assert_eq!(busy[1].0, "limit");
        let verdict = "host-bound: telling the devices what to do takes 95 % of";
        assert!(busy[1].1.starts_with(verdict), "{busy:?}");
    }

    #[test]
    fn a_long_line_goes_on_below_what_it_says() {
        assert_eq!(
            line("cut", "stage 0 computes long", 32),
            "cut            stage 0 computes\n               long\n"
        );
        assert_eq!(
            beside(2.0, 3.0).split_once("backward, ").unwrap().1,
            "1.50 times as long"
        );
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
