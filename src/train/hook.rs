//! Who is told how a run gets on.

use std::fmt;
use std::io::Write;

use super::evaluation::Evaluation;
use super::outcome::Ended;
use crate::metrics::{Interval, StepMetrics};

/// Is told how a run gets on; every method does nothing by default.
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
    /// Training begins; `done` steps were done by an earlier run.
    fn begin(&mut self, done: usize) {
        let _ = done;
    }

    /// What a step came to. On asynchronous devices it is known one step later.
    fn step(&mut self, metrics: &StepMetrics) {
        let _ = metrics;
    }

    /// The checkpoint of this step is whole on the disk.
    fn checkpoint(&mut self, step: u64) {
        let _ = step;
    }

    /// After this step, one of the first, it is known that another cut would be faster: a sentence on
    /// which stages wait.
    fn cut(&mut self, step: u64, words: &str) {
        let _ = (step, words);
    }

    /// Something that is good to know.
    fn note(&mut self, note: &str) {
        let _ = note;
    }

    /// Something that somebody has to be told, even where nothing else is said; training goes
    /// on.
    fn warning(&mut self, warning: &str) {
        let _ = warning;
    }

    /// No step follows: what is left is to finish the last checkpoint, and to measure the
    /// held-out loss.
    fn end(&mut self, ended: Ended) {
        let _ = ended;
    }

    /// The loss is measured on this many held-out batches now, where their number is known.
    fn held_out(&mut self, batches: Option<usize>) {
        let _ = batches;
    }

    /// One held-out batch more has been measured.
    fn held_out_batch(&mut self) {}

    /// An evaluation after this step begins, on this many held-out batches where their number is
    /// known; training waits for it.
    fn evaluate(&mut self, step: u64, batches: Option<usize>) {
        let _ = (step, batches);
    }

    /// What it came to, and whether it is the best one of the run so far.
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

/// All hooks of a run, in the order they were added.
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

/// Writes a line for every so many steps, and all notes and warnings. Its speed is that of all steps
/// since the last line.
///
/// Where a line cannot be written, nobody can be told.
#[derive(Debug)]
pub struct LogLines<W> {
    to: W,
    every: u64,
    interval: Interval,
}

impl LogLines<std::io::Stderr> {
    /// A line on standard error for each `every` steps and for the first one.
    pub fn stderr(every: usize) -> Self {
        Self::new(std::io::stderr(), every)
    }
}

impl<W: Write> LogLines<W> {
    /// The same to any writer.
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
