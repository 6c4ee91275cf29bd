//! What a person sees while a run goes on.

use std::io::IsTerminal;

use gpipe_partitioner::words::count;
use indicatif::{ProgressBar, ProgressStyle};

use super::job::Job;
use super::resolved::Resolved;
use super::training::Ended;
use crate::Pipeline;
use crate::cli::feed::Source;
use crate::cli::{output, say};
use crate::metrics::StepMetrics;

/// A bar on a terminal, about twenty lines elsewhere, nothing when quiet.
#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    lines: bool,
    every: usize,
    steps: usize,
}

impl Progress {
    pub(super) fn new(job: &Job) -> Self {
        let (quiet, steps) = (job.args.quiet, job.recipe.steps);
        let terminal = std::io::stderr().is_terminal();
        Self {
            bar: (terminal && !quiet).then(|| bar(steps)),
            lines: !terminal && !quiet,
            every: steps.div_ceil(20),
            steps,
        }
    }

    /// What is trained, and with which configuration.
    pub(super) fn begin(&self, job: &Job, pipe: &Pipeline, resolved: &Resolved) {
        for line in resolved.lines.iter().chain(&job.notes) {
            self.say(line);
        }
        let recipe = &job.recipe;
        self.say(&format!(
            "{}: {} over {} {:?} on {}, {}, schedule {}, recompute {}",
            job.chosen.spec.name(),
            count(pipe.partition().layers(), "layer"),
            count(pipe.partition().stages(), "stage"),
            pipe.partition().balance(),
            count(recipe.devices.len(), "device"),
            count(recipe.micro, "micro-batch"),
            recipe.schedule,
            recipe.recompute,
        ));
        if let Source::Synthetic(why) = &job.source {
            let why = why.as_ref().map_or_else(String::new, |why| {
                format!(", as the built-in text does not fit ({why})")
            });
            self.say(&format!("data: made up once from the model's shapes{why}"));
        }
    }

    /// A line, unless quiet.
    pub(super) fn say(&self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.println(output::plain(line));
        } else if self.lines {
            say(line);
        }
    }

    /// So many steps have been done by an earlier run.
    pub(super) fn go_on(&self, done: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
            bar.reset_eta();
        }
    }

    pub(super) fn step(&self, metrics: &StepMetrics) {
        let step = metrics.step as usize;
        if let Some(bar) = &self.bar {
            bar.set_message(metrics.to_string());
            bar.inc(1);
        } else if self.lines && (step.is_multiple_of(self.every) || step == 1) {
            say(&format!("step {step:>5}/{}  {metrics}", self.steps));
        }
    }

    /// Leaves the bar of a run that is over, and takes that of a stopped one away, which would
    /// say that nothing is left to do.
    pub(super) fn finish(&self, ended: Ended) {
        match (&self.bar, ended) {
            (Some(bar), Ended::AllDone) => bar.abandon(),
            (Some(bar), Ended::Stopped { .. }) => bar.finish_and_clear(),
            (None, _) => {}
        }
    }

    /// A bar on a terminal for the batches whose loss is measured when all steps are done.
    pub(super) fn judging(&self, batches: usize) -> ProgressBar {
        if self.bar.is_none() {
            return ProgressBar::hidden();
        }
        let template = "{pos}/{len} {bar:12} batches held out, {eta} left";
        let style = ProgressStyle::with_template(template);
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(batches as u64).with_style(style)
    }
}

fn bar(steps: usize) -> ProgressBar {
    let template = "{pos}/{len} {bar:12} {wide_msg} {eta} left";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps as u64).with_style(style)
}
