//! Metrics from the report of a training step.

use std::time::Duration;

use super::StepMetrics;
use gpipe_torch::{Error, StepReport, gpus_take_cpu_time};

impl StepMetrics {
    /// Returns the metrics in the report of a step (from 1): loss, makespan, bubbles, memory. Waits for
    /// devices that are still busy.
    ///
    /// # Errors
    /// As [`StepReport::read`].
    pub fn of(step: u64, report: &StepReport) -> Result<Self, Error> {
        let numbers = report.read()?;
        let devices = report.memory.iter().flat_map(|memory| &memory.devices);
        Ok(Self {
            step,
            loss: numbers.loss,
            makespan_ms: numbers.timeline.makespan().get() / 1e3,
            bubble_measured: numbers.bubble_measured(),
            bubble_predicted: numbers.bubble_predicted(),
            peak_bytes: devices.map(|used| used.total.0).collect(),
            // If the devices are CPU threads, the share is meaningless.
            host_share: numbers.host_share.filter(|_| !gpus_take_cpu_time()),
            loss_scale: numbers.loss_scale,
            skipped: numbers.skipped(),
            ..Self::default()
        })
    }

    /// Adds times: the time `elapsed` since the results of the previous step, the time of that that the
    /// batch of so many samples was `waited` for, and the time from then to the end of the update.
    #[must_use]
    pub fn timed(
        self,
        samples: usize,
        elapsed: Duration,
        waited: Duration,
        took: Duration,
    ) -> Self {
        let all = elapsed.as_secs_f64();
        Self {
            elapsed_ms: all * 1e3,
            samples_per_s: samples as f64 / all,
            step_ms: took.as_secs_f64() * 1e3,
            input_wait: Some(waited.as_secs_f64() / all),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StepMetrics;
    use gpipe_torch::testing::of_a_failed_device;

    /// They were those of a loss of NaN.
    #[test]
    fn a_device_that_failed_has_no_metrics() {
        assert!(StepMetrics::of(1, &of_a_failed_device()).is_err());
    }
}
