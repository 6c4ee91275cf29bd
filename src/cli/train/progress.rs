//! What a person sees while a run goes on.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use gpipe_partitioner::words::count;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

use super::job::Job;
use super::resolved::Resolved;
use super::summary::another_cut;
use crate::Pipeline;
use crate::cli::feed::Source;
use crate::cli::{output, say};
use crate::metrics::StepMetrics;
use crate::train::{Ended, Evaluation, Hook};

/// A bar on a terminal, about twenty lines elsewhere, nothing when quiet.
#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    /// The same for held-out batches, when all steps are done.
    judging: ProgressBar,
    lines: bool,
    every: usize,
    steps: usize,
    /// When the run began, and after which step.
    begun: (Instant, usize),
    /// Evaluations in a row that end the run.
    patience: usize,
    /// What to do about a cut that costs time.
    another_cut: String,
    /// Batches that are held out, of which fewer may be measured.
    held_out: usize,
}

impl Progress {
    pub(super) fn new(job: &Job) -> Self {
        let (quiet, steps) = (job.args.quiet, job.recipe.steps);
        let terminal = std::io::stderr().is_terminal();
        let template = "{pos}/{len} {bar:12} {wide_msg} {left}";
        Self {
            bar: (terminal && !quiet).then(|| bar(steps, template)),
            judging: ProgressBar::hidden(),
            lines: !terminal && !quiet,
            every: steps.div_ceil(20),
            steps,
            begun: (Instant::now(), 0),
            patience: job.recipe.early_stopping,
            another_cut: another_cut(job),
            held_out: job.held_out().map_or(0, |own| own.batches()),
        }
    }

    /// What is trained, and with which configuration.
    pub(super) fn about(&self, job: &Job, pipe: &Pipeline, resolved: &Resolved) {
        for line in &resolved.lines {
            self.say(line);
        }
        for line in &job.said {
            self.say(line);
        }
        for note in &job.notes {
            self.warn(job, note);
        }
        if let Some(words) = job.simulation() {
            self.say(&words);
        }
        let recipe = &job.recipe;
        self.say(&format!(
            "{}: {} over {} {:?} on {}, {}, schedule {}, recompute {}",
            job.chosen.spec.name(),
            count(pipe.partition().layers(), "layer"),
            count(pipe.partition().stages(), "stage"),
            pipe.partition().balance(),
            devices(job, pipe),
            count(recipe.micro, "micro-batch"),
            recipe.schedule,
            recipe.recompute,
        ));
        if let Some(parts) = job.source.parts() {
            self.say(&format!("data: {} ({parts})", job.source.name()));
        }
        if let Source::Samples { samples, .. } = &job.source {
            self.say(&format!(
                "data: {} ({})",
                job.source.name(),
                samples.describe()
            ));
            for note in samples.notes() {
                self.say(&format!("  {note}"));
            }
        }
        if let Source::Synthetic(why) = &job.source {
            const DATA: &str = "data: made up once from the model's shapes";
            match why {
                Some(why) => self.warn(
                    job,
                    &format!(
                        "{DATA}, as the built-in text does not fit ({why}): good for measuring speed, and its \
                         loss says nothing; --data takes your own"
                    ),
                ),
                None => self.say(DATA),
            }
        }
    }

    /// What a quiet program says, too; of several processes the first one, unless quiet.
    fn warn(&self, job: &Job, line: &str) {
        if job.recipe.processes <= 1 {
            self.above_bar(line);
        } else {
            self.say(line);
        }
    }

    /// A line, unless quiet.
    pub(super) fn say(&self, line: &str) {
        if self.bar.is_some() || self.lines {
            self.above_bar(line);
        }
    }

    /// A line above the bar, where there is one: written over it, it would leave half of it behind.
    fn above_bar(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(fitted(line)),
            None => say(line),
        }
    }

    /// What says a line while something else holds the progress.
    pub(super) fn speaker(&self) -> impl Fn(&str) + use<> {
        let (bar, lines) = (self.bar.clone(), self.lines);
        move |line| match &bar {
            Some(bar) => bar.println(fitted(line)),
            None if lines => say(line),
            None => {}
        }
    }
}

fn devices(job: &Job, pipe: &Pipeline) -> String {
    let recipe = &job.recipe;
    let all = pipe.partition().stages() / recipe.chunks() * recipe.replicas;
    let all = count(all, "device");
    let all = match &job.world {
        Some(world) => format!("{all} of {}", count(world.size(), "process")),
        None => all,
    };
    match recipe.replicas {
        1 => all,
        several => format!("{all} in {}", count(several, "replica")),
    }
}

impl Hook for Progress {
    fn begin(&mut self, done: usize) {
        self.begun = (Instant::now(), done);
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
            bar.reset_eta();
        }
    }

    fn step(&mut self, metrics: &StepMetrics) {
        let step = metrics.step as usize;
        // An evaluation has a line of its own.
        let metrics = &StepMetrics {
            held_out_loss: None,
            held_out_accuracy: None,
            ..metrics.clone()
        };
        if let Some(bar) = &self.bar {
            let line = metrics.to_string();
            bar.set_message(fitting(&line, room(self.steps)).to_owned());
            bar.inc(1);
        } else if self.lines && (step.is_multiple_of(self.every) || step == 1) {
            let (since, done) = (
                self.begun.0.elapsed(),
                step.saturating_sub(self.begun.1).max(1),
            );
            let left = since.mul_f64(self.steps.saturating_sub(step) as f64 / done as f64);
            let (since, left) = (clock(since), clock(left));
            say(&format!(
                "step {step:>5}/{}  {metrics}  {since}, {left} left",
                self.steps
            ));
        }
    }

    fn cut(&mut self, _: u64, words: &str) {
        self.say(&format!("note: {words}{}", self.another_cut));
    }

    fn note(&mut self, note: &str) {
        self.say(note);
    }

    fn warning(&mut self, warning: &str) {
        self.above_bar(&format!("warning: {warning}"));
    }

    /// Leaves the bar of a run that is over, and takes that of a stopped one away, which would
    /// say that nothing is left to do.
    fn end(&mut self, ended: Ended) {
        if let Ended::EarlyStopped { step } = ended {
            self.say(&format!(
                "early stopping after step {step} of {}: {} in a row no better than the best; \
                 --resume with a larger --early-stopping trains on",
                self.steps,
                count(self.patience, "evaluation")
            ));
        }
        match (&self.bar, ended) {
            (Some(bar), Ended::Stopped { .. } | Ended::EarlyStopped { .. }) => {
                bar.finish_and_clear();
            }
            (Some(bar), _) => bar.abandon(),
            (None, _) => {}
        }
    }

    fn held_out(&mut self, batches: Option<usize>) {
        let batches = batches.unwrap_or_default();
        self.say(&format!(
            "all steps are done; measuring the held-out loss ({})",
            match batches {
                few if few < self.held_out => format!(
                    "{few} of {}; --held-out-batches N takes another number",
                    count(self.held_out, "batch")
                ),
                0 | 1 => count(batches, "batch"),
                all => format!("{}; --held-out-batches N takes fewer", count(all, "batch")),
            }
        ));
        if self.bar.is_some() {
            self.judging = bar(batches, "{pos}/{len} {bar:12} batches held out, {left}");
        }
    }

    fn held_out_batch(&mut self) {
        self.judging.inc(1);
        if let (Some(bar), true) = (&self.bar, self.judging.is_hidden()) {
            let (done, all) = (self.judging.position(), self.judging.length().unwrap_or(0));
            bar.set_message(format!("held-out loss: batch {done} of {all}"));
        }
    }

    fn evaluate(&mut self, _: u64, batches: Option<usize>) {
        self.judging = ProgressBar::hidden();
        self.judging.set_length(batches.unwrap_or_default() as u64);
    }

    fn evaluated(&mut self, evaluation: Evaluation, is_best: bool) {
        let (step, words) = (evaluation.step, evaluation.words(is_best));
        self.say(&format!("step {step:>5}/{}  held-out {words}", self.steps));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.judging.finish_and_clear();
    }
}

/// `0:05`, `12:00`, `3:00:00`: hours, minutes and seconds.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        hours => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Columns of the terminal that the bar, its numbers and the time left leave to a message.
fn room(steps: usize) -> usize {
    let numbers = 2 * steps.to_string().len() + 1;
    let time = "59m left".len();
    let terminal = terminal_size::terminal_size_of(std::io::stderr());
    let width = terminal.map_or(80, |(width, _)| usize::from(width.0));
    width.saturating_sub(numbers + 12 + time + 4)
}

/// As many parts of a line as there is room for, two blanks between them: none is cut off within.
fn fitting(line: &str, room: usize) -> &str {
    let ends = line.match_indices("  ").map(|(at, _)| at);
    let ends = ends.chain([line.len()]);
    let fits = ends.take_while(|&end| line[..end].chars().count() <= room);
    &line[..fits.last().unwrap_or_default()]
}

/// A line as a terminal of this width shows it.
fn fitted(line: &str) -> String {
    output::wrapped(&output::plain(line), output::width(None))
}

fn bar(length: usize, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length as u64).with_style(style.with_key("left", left))
}

/// How long the rest takes, which nobody knows before the first is done.
fn left(state: &ProgressState, text: &mut dyn std::fmt::Write) {
    let eta = HumanDuration(state.eta());
    // Where it cannot be written nothing is shown.
    let _ = match state.pos() {
        0 => Ok(()),
        _ => write!(text, "{eta:#} left"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_a_clock() {
        let told = |seconds: f64| clock(Duration::from_secs_f64(seconds));
        assert_eq!(
            [told(4.6), told(720.0), told(10_861.0)],
            ["0:05", "12:00", "3:01:01"]
        );
    }

    #[test]
    fn a_message_ends_with_a_whole_part() {
        let line = "loss 2.4  norm 0.9  bubble 3.1 %";
        assert_eq!(fitting(line, 80), line);
        assert_eq!(fitting(line, line.len()), line);
        // Not `loss 2.4  norm 0.9  bu`.
        assert_eq!(fitting(line, 22), "loss 2.4  norm 0.9");
        assert_eq!(fitting(line, 8), "loss 2.4");
        assert_eq!(fitting(line, 3), "");
    }
}
