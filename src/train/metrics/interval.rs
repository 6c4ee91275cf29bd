//! Speed over several steps.

use super::StepMetrics;

/// Adds up steps and returns their common speed: samples over elapsed time.
///
/// ```
/// use gpipe::train::metrics::{Interval, StepMetrics};
///
/// let step = |elapsed_ms: f64| StepMetrics {
///     elapsed_ms,
///     samples_per_s: 8.0 / elapsed_ms * 1e3,
///     ..StepMetrics::default()
/// };
/// let mut interval = Interval::default();
/// [10.0, 10.0, 780.0].iter().for_each(|&ms| interval.add(&step(ms)));
/// assert_eq!(interval.samples_per_s(), 30.0); // and not 800, the median
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Interval {
    samples: f64,
    waited_s: f64,
    elapsed_s: f64,
}

impl Interval {
    /// Adds a step.
    pub fn add(&mut self, step: &StepMetrics) {
        let elapsed_s = step.elapsed_ms / 1e3;
        self.elapsed_s += elapsed_s;
        self.samples += step.samples_per_s * elapsed_s;
        self.waited_s += step.input_wait.unwrap_or_default() * elapsed_s;
    }

    /// Returns samples over elapsed time; NaN if no time has elapsed.
    pub fn samples_per_s(&self) -> f64 {
        self.samples / self.elapsed_s
    }

    /// Returns the share of the elapsed time spent waiting for batches, 0 to 1; NaN if no time has
    /// elapsed.
    pub fn input_wait(&self) -> f64 {
        self.waited_s / self.elapsed_s
    }

    /// Returns the elapsed time in seconds.
    pub fn elapsed_s(&self) -> f64 {
        self.elapsed_s
    }

    /// Returns the step's metrics with the speeds of the whole interval, which includes the step.
    #[must_use]
    pub fn over(&self, step: &StepMetrics) -> StepMetrics {
        let times = self.samples_per_s() / step.samples_per_s;
        StepMetrics {
            samples_per_s: self.samples_per_s(),
            tokens_per_s: step.tokens_per_s.map(|own| own * times),
            mfu: step.mfu.map(|own| own * times),
            input_wait: step.input_wait.map(|_| self.input_wait()),
            ..step.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line once showed 25500 samples/s for a run at 90.
    #[test]
    fn speeds_of_an_interval_are_over_all_of_its_time() {
        let step = |elapsed_ms: f64, waited_ms: f64| StepMetrics {
            elapsed_ms,
            samples_per_s: 4e3 / elapsed_ms,
            tokens_per_s: Some(64e3 / elapsed_ms),
            mfu: Some(0.5 * 100.0 / elapsed_ms),
            input_wait: Some(waited_ms / elapsed_ms),
            ..StepMetrics::default()
        };
        let mut interval = Interval::default();
        let last = step(100.0, 0.0);
        for own in [step(300.0, 150.0), step(100.0, 0.0), last.clone()] {
            interval.add(&own);
        }
        let told = interval.over(&last);
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
        close(told.samples_per_s, 24.0);
        close(told.tokens_per_s.unwrap(), 384.0);
        close(told.mfu.unwrap(), 0.3);
        close(told.input_wait.unwrap(), 0.3);
        close(interval.elapsed_s(), 0.5);
    }
}
