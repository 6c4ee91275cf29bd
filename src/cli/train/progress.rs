//! Progress display of a run.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use gpipe_partitioner::words::count;
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

use super::job::Job;
use super::summary::another_cut;
use crate::feed::Source;
use crate::{output, say};
use gpipe_torch::Pipeline;
use gpipe_train::metrics::{Interval, StepMetrics};
use gpipe_train::{Ended, Evaluation, Hook};

/// Lines for some steps and, on a terminal, a progress bar below; nothing if quiet.
#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    /// Progress bar of held-out batches, after all steps.
    judging: ProgressBar,
    lines: bool,
    pace: Pace,
    steps: usize,
    /// Start time and start step.
    begun: (Instant, usize),
    /// Steps since the last line.
    interval: Interval,
    /// Evaluations without a better loss that end the run.
    patience: usize,
    /// Advice for an imbalanced cut that costs time.
    another_cut: String,
    /// Held-out batches; fewer may be measured.
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
            lines: !quiet,
            pace: Pace::new(job.args.log_every, steps),
            steps,
            begun: (Instant::now(), 0),
            interval: Interval::default(),
            patience: job.recipe.early_stopping,
            another_cut: another_cut(job),
            held_out: job.held_out().map_or(0, |own| own.batches()),
        }
    }

    /// Prints the setup of the run.
    pub(super) fn about(&self, job: &Job, pipe: &Pipeline) {
        for note in &job.notes {
            self.warn(job, note);
        }
        if let Some(words) = job.simulation() {
            self.say(&words);
        }
        let recipe = &job.recipe;
        self.say(&format!(
            "{}: {} over {} {:?} on {}, batches of {} in {}, schedule {}, recompute {}, {}",
            job.chosen.spec.name(),
            count(pipe.partition().layers(), "layer"),
            count(pipe.partition().stages(), "stage"),
            pipe.partition().balance(),
            devices(job, pipe),
            recipe.batch,
            count(recipe.micro, "micro-batch"),
            recipe.schedule,
            recipe.recompute,
            recipe.optimizer.name(),
        ));
        for line in &job.said {
            self.say(line);
        }
        if let Some(parts) = job.source.parts() {
            self.say(&format!("data: {} ({parts})", job.source.name()));
        }
        if let Source::Samples { samples, .. } = &job.source {
            self.say(&format!(
                "data: {}: {}",
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

    /// Prints a line even if quiet; with several processes only the first prints, unless quiet.
    fn warn(&self, job: &Job, line: &str) {
        if job.recipe.processes <= 1 {
            self.above_bar(line);
        } else {
            self.say(line);
        }
    }

    /// Prints a line, unless quiet.
    pub(super) fn say(&self, line: &str) {
        if self.lines {
            self.above_bar(line);
        }
    }

    /// Prints a line above the bar, if there is one: printed over it, the line would leave half the bar
    /// behind.
    fn above_bar(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(fitted(line)),
            None => say(line),
        }
    }

    /// Returns a printer of lines for use while the progress is borrowed elsewhere.
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
        self.pace.last = Instant::now();
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
            bar.reset_eta();
        }
    }

    fn step(&mut self, metrics: &StepMetrics) {
        let step = metrics.step as usize;
        self.interval.add(metrics);
        // An evaluation has its own line.
        let metrics = StepMetrics {
            held_out_loss: None,
            held_out_accuracy: None,
            ..self.interval.over(metrics)
        };
        if let Some(bar) = &self.bar {
            bar.set_message(fitting(&brief(&metrics), room(self.steps)).to_owned());
            bar.inc(1);
        }
        let is_first = step == self.begun.1 + 1;
        if self.lines && (self.pace.is_due(step) || is_first || step == self.steps) {
            self.pace.last = Instant::now();
            self.interval = Interval::default();
            let (since, done) = (
                self.begun.0.elapsed(),
                step.saturating_sub(self.begun.1).max(1),
            );
            let left = since.mul_f64(self.steps.saturating_sub(step) as f64 / done as f64);
            let (since, left) = (clock(since), clock(left));
            self.above_bar(&format!(
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

    /// Keeps the bar of a finished run, and removes that of a stopped one, which would look finished.
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

/// Decides which steps get a line.
#[derive(Debug)]
struct Pace {
    /// Steps between lines: as requested, or a twentieth of the run.
    every: usize,
    /// Maximum time between lines, unless the interval was requested.
    patience: Option<Duration>,
    /// Time of the last line.
    last: Instant,
}

impl Pace {
    const PATIENCE: Duration = Duration::from_mins(1);

    fn new(asked: Option<u32>, steps: usize) -> Self {
        Self {
            every: asked.map_or(steps.div_ceil(20), |every| every as usize),
            patience: asked.is_none().then_some(Self::PATIENCE),
            last: Instant::now(),
        }
    }

    fn is_due(&self, step: usize) -> bool {
        let waited = |patience| self.last.elapsed() >= patience;
        step.is_multiple_of(self.every.max(1)) || self.patience.is_some_and(waited)
    }
}

/// The metrics of a step for a bar, which has room for few: the loss, the speed and the bubble.
fn brief(step: &StepMetrics) -> String {
    let step = StepMetrics {
        tokens_per_s: None,
        ..step.clone()
    };
    let line = step.to_string();
    let is_last = |part: &&str| part.starts_with("lr ") || part.starts_with("norm ");
    let (last, first): (Vec<&str>, Vec<&str>) = line.split("  ").partition(is_last);
    [first, last].concat().join("  ")
}

/// Formats hours, minutes and seconds: `0:05`, `12:00`, `3:00:00`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        hours => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Columns left for a message beside the bar, its numbers and the remaining time.
fn room(steps: usize) -> usize {
    let numbers = 2 * steps.to_string().len() + 1;
    let time = "59m left".len();
    let terminal = terminal_size::terminal_size_of(std::io::stderr());
    let width = terminal.map_or(80, |(width, _)| usize::from(width.0));
    width.saturating_sub(numbers + 12 + time + 4)
}

/// Keeps as many whole parts of a line, separated by two spaces, as fit.
fn fitting(line: &str, room: usize) -> &str {
    let ends = line.match_indices("  ").map(|(at, _)| at);
    let ends = ends.chain([line.len()]);
    let fits = ends.take_while(|&end| line[..end].chars().count() <= room);
    &line[..fits.last().unwrap_or_default()]
}

/// Wraps a line to the terminal's width.
fn fitted(line: &str) -> String {
    output::wrapped(&output::plain(line), output::width(None))
}

fn bar(length: usize, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length as u64).with_style(style.with_key("left", left))
}

/// Writes the estimated remaining time, unknown before the first step is done.
fn left(state: &ProgressState, text: &mut dyn std::fmt::Write) {
    let eta = HumanDuration(state.eta());
    // Write errors are ignored.
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

    /// 100,000 steps once had twenty lines, some of them hours apart.
    #[test]
    fn lines_come_for_a_twentieth_of_the_steps_a_minute_or_as_often_as_asked_for() {
        let due = |pace: &Pace| (1..=100).filter(|step| pace.is_due(*step)).count();
        let mut pace = Pace::new(None, 100);
        assert_eq!(due(&pace), 20);
        pace.last -= Pace::PATIENCE;
        assert_eq!(due(&pace), 100);
        let mut asked = Pace::new(Some(50), 100);
        asked.last -= Pace::PATIENCE;
        assert_eq!(due(&asked), 2);
    }

    /// On 80 columns, the bar showed the rate and the norm but neither the speed nor the bubble.
    #[test]
    fn a_bar_has_the_speed_and_the_bubble_first() {
        let step = StepMetrics {
            loss: 2.5104,
            lr: 3e-3,
            grad_norm: Some(0.8),
            samples_per_s: 44.0,
            tokens_per_s: Some(5635.0),
            bubble_measured: 0.201,
            ..StepMetrics::default()
        };
        let line = brief(&step);
        assert_eq!(
            line,
            "loss 2.5104  44.0 samples/s  bubble 20.1 %  lr 3.00e-3  norm 0.800"
        );
        let room = 80 - "400/400 ".len() - 12 - "59m left".len() - 2;
        assert!(fitting(&line, room).ends_with("bubble 20.1 %"));
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
