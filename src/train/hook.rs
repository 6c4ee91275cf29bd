//! Hooks for the progress of a run.

use std::fmt;
use std::io::Write;

use super::evaluation::Evaluation;
use super::outcome::Ended;
use crate::metrics::{Interval, StepMetrics};

/// Receives the progress of a run; every method does nothing by default.
///
/// ```
/// use gpipe::train::metrics::StepMetrics;
/// use gpipe::train::Hook;
///
/// /// Keeps the smallest loss.
/// struct Best(f64);
///
/// impl Hook for Best {
///     fn step(&mut self, metrics: &StepMetrics) {
///         self.0 = self.0.min(metrics.loss);
///     }
/// }
/// ```
pub trait Hook {
    /// Training begins; an earlier run has completed `done` steps.
    fn begin(&mut self, done: usize) {
        let _ = done;
    }

    /// Metrics of a completed step. On asynchronous devices they are known one step later.
    fn step(&mut self, metrics: &StepMetrics) {
        let _ = metrics;
    }

    /// The checkpoint of this step is complete on disk.
    fn checkpoint(&mut self, step: u64) {
        let _ = step;
    }

    /// One of the first steps, this one, has shown that another balance would be faster; `words` say
    /// which stages wait.
    fn cut(&mut self, step: u64, words: &str) {
        let _ = (step, words);
    }

    /// A note.
    fn note(&mut self, note: &str) {
        let _ = note;
    }

    /// A warning, to be shown even if quiet; training continues.
    fn warning(&mut self, warning: &str) {
        let _ = warning;
    }

    /// The last step is done; finishing the last checkpoint and the held-out evaluation remain.
    fn end(&mut self, ended: Ended) {
        let _ = ended;
    }

    /// The evaluation after all steps begins, on this many held-out batches, if known.
    fn held_out(&mut self, batches: Option<usize>) {
        let _ = batches;
    }

    /// Another held-out batch is done.
    fn held_out_batch(&mut self) {}

    /// An evaluation after this step begins, on this many held-out batches if known; training waits for
    /// it.
    fn evaluate(&mut self, step: u64, batches: Option<usize>) {
        let _ = (step, batches);
    }

    /// Result of an evaluation, and whether it is the best so far.
    fn evaluated(&mut self, evaluation: Evaluation, is_best: bool) {
        let _ = (evaluation, is_best);
    }
}

impl<H: Hook + ?Sized> Hook for &mut H {
    fn begin(&mut self, done: usize) {
        (**self).begin(done);
    }

    fn step(&mut self, metrics: &StepMetrics) {
        (**self).step(metrics);
    }

    fn checkpoint(&mut self, step: u64) {
        (**self).checkpoint(step);
    }

    fn cut(&mut self, step: u64, words: &str) {
        (**self).cut(step, words);
    }

    fn note(&mut self, note: &str) {
        (**self).note(note);
    }

    fn warning(&mut self, warning: &str) {
        (**self).warning(warning);
    }

    fn end(&mut self, ended: Ended) {
        (**self).end(ended);
    }

    fn held_out(&mut self, batches: Option<usize>) {
        (**self).held_out(batches);
    }

    fn held_out_batch(&mut self) {
        (**self).held_out_batch();
    }

    fn evaluate(&mut self, step: u64, batches: Option<usize>) {
        (**self).evaluate(step, batches);
    }

    fn evaluated(&mut self, evaluation: Evaluation, is_best: bool) {
        (**self).evaluated(evaluation, is_best);
    }
}

/// All hooks of a run, in the order of adding.
#[derive(Default)]
pub(super) struct Hooks<'a>(Vec<Box<dyn Hook + 'a>>);

impl<'a> Hooks<'a> {
    pub(super) fn add(&mut self, hook: impl Hook + 'a) {
        self.0.push(Box::new(hook));
    }

    pub(super) fn each(&mut self, tell: impl Fn(&mut dyn Hook)) {
        for hook in &mut self.0 {
            tell(&mut **hook);
        }
    }

    pub(super) fn note(&mut self, note: &str) {
        self.each(|hook| hook.note(note));
    }

    pub(super) fn warning(&mut self, warning: &str) {
        self.each(|hook| hook.warning(warning));
    }
}

impl fmt::Debug for Hooks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hooks").field(&self.0.len()).finish()
    }
}

/// Writes a line every so many steps, and all notes and warnings. The speed covers all steps since the
/// last line.
///
/// Errors of writing are ignored.
#[derive(Debug)]
pub struct LogLines<W> {
    to: W,
    every: u64,
    interval: Interval,
}

impl LogLines<std::io::Stderr> {
    /// Writes to standard error, after the first step and every `every` steps.
    pub fn stderr(every: usize) -> Self {
        Self::new(std::io::stderr(), every)
    }
}

impl<W: Write> LogLines<W> {
    /// Writes to any writer.
    pub fn new(to: W, every: usize) -> Self {
        Self {
            to,
            every: every.max(1) as u64,
            interval: Interval::default(),
        }
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        let _ = writeln!(self.to, "{line}");
    }
}

impl<W: Write> Hook for LogLines<W> {
    fn step(&mut self, metrics: &StepMetrics) {
        self.interval.add(metrics);
        if metrics.step == 1 || metrics.step.is_multiple_of(self.every) {
            let metrics = self.interval.over(metrics);
            self.interval = Interval::default();
            self.line(format_args!("step {:>5}  {metrics}", metrics.step));
        }
    }

    fn evaluated(&mut self, evaluation: Evaluation, is_best: bool) {
        let (step, words) = (evaluation.step, evaluation.words(is_best));
        self.line(format_args!("step {step:>5}  held-out {words}"));
    }

    fn cut(&mut self, step: u64, words: &str) {
        self.line(format_args!("step {step:>5}  {words}"));
    }

    fn note(&mut self, note: &str) {
        self.line(format_args!("{note}"));
    }

    fn warning(&mut self, warning: &str) {
        self.line(format_args!("warning: {warning}"));
    }
}
