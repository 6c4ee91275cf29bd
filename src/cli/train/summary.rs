//! What a run came to: for people, or as JSON.

use std::path::Path;

use serde::Serialize;

use super::Failure;
use super::job::Job;
use crate::cli::{limit, output};
use crate::train::Outcome;

/// What `--json` prints; times and rates are medians over the steps.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    model: &'a str,
    data: String,
    steps: u64,
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
    /// Where devices are asynchronous.
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

/// One device, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
struct DeviceMemory {
    /// At any time.
    peak: u64,
    /// Between two actions: what micro-batches in flight held.
    held: u64,
    /// What `held` is on paper.
    predicted: u64,
}

/// Prints what a run came to, with a `sample` of what its model writes.
pub(super) fn print(job: &Job, outcome: &Outcome, sample: Option<&str>) -> Result<(), Failure> {
    if job.args.json {
        let summary = serde_json::to_string(&summary(job, outcome))?;
        return output::print(&(summary + "\n"));
    }
    output::print(&text(job, outcome, sample))
}

fn summary<'a>(job: &'a Job, outcome: &'a Outcome) -> Summary<'a> {
    let devices = outcome.memory.iter().flat_map(|memory| &memory.devices);
    let memory = devices.map(|used| DeviceMemory {
        peak: used.peak.0,
        held: used.held.0,
        predicted: used.predicted.0,
    });
    Summary {
        model: job.chosen.spec.name(),
        data: job.source.name(),
        steps: outcome.steps(),
        loss_first: outcome.loss_first(),
        loss_last: outcome.loss_last(),
        held_out_loss: outcome.held_out_loss,
        samples_per_s: outcome.median(|record| record.samples_per_s),
        tokens_per_s: outcome.tokens_per_s(),
        step_ms_median: outcome.median(|record| record.step_ms),
        input_wait: outcome.median(|record| record.input_wait.unwrap_or_default()),
        mfu: outcome.mfu(),
        host_share: outcome.host_share(),
        other_programs_cores: outcome.other_programs_cores(),
        bubble_measured: outcome.median(|record| record.bubble_measured),
        bubble_predicted: outcome.median(|record| record.bubble_predicted),
        schedule: job.recipe.schedule.name(),
        chunks: job.recipe.chunks(),
        recompute: job.recipe.recompute.to_string(),
        memory: memory.collect(),
        run_dir: &outcome.folder,
        planned_ms: job.plan.as_ref().map(|plan| plan.step.get() / 1e3),
        makespan_ms_median: outcome.median(|record| record.makespan_ms),
    }
}

fn text(job: &Job, outcome: &Outcome, sample: Option<&str>) -> String {
    let width = output::width(None);
    let paragraph = |text: &str| output::wrapped(text, width) + "\n";
    let sample = sample.map_or_else(String::new, |sample| format!("\n{}", paragraph(sample)));
    let comparison = outcome.comparison.as_ref();
    let others = comparison.and_then(|own| own.others()).map(paragraph);
    let comparison = comparison.map_or_else(String::new, |own| own.text(width));
    let lines = lines(job, outcome);
    let lines = lines.iter().map(|(title, text)| line(title, text, width));
    format!(
        "{sample}\nthe last step:\n\n{comparison}{}\n{}",
        others.unwrap_or_default(),
        lines.collect::<String>()
    )
}

/// What is told of the whole run, and what to do about it.
fn lines(job: &Job, outcome: &Outcome) -> Vec<(&'static str, String)> {
    let mut lines = outcome.lines();
    for (title, text) in &mut lines {
        match (*title, &job.plan) {
            ("held-out loss", _) if job.source.text().is_some() => *text += " per character",
            ("held-out loss", _) => *text += " per token",
            ("cut", Some(_)) => {
                *text += "; the plan was made from other times than these: profile again";
            }
            ("cut", None) => {
                *text += &format!(
                    "; `profile --model {} --plan plan.json` with the same sizes cuts by time, for \
                     `train --plan plan.json`",
                    job.recipe.model
                );
            }
            _ => {}
        }
    }
    if let Some(verdict) = limit::host_bound(outcome.host_share()) {
        let host = lines.iter().position(|(title, _)| *title == "host");
        lines.insert(host.map_or(0, |host| host + 1), ("limit", verdict));
    }
    lines
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_goes_on_below_what_it_says() {
        assert_eq!(
            line("cut", "stage 0 computes long", 32),
            "cut            stage 0 computes\n               long\n"
        );
    }
}
