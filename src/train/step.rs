//! One step: gradients of a batch, the update by them, and what that came to.

use std::time::{Duration, Instant};

use super::job::Job;
use super::{Failure, failure};
use crate::cli::feed::Feed;
use crate::metrics::StepMetrics;
use crate::{GradNorm, Optimizer, Pipeline, StepReport};

/// A step whose numbers may still be on devices.
#[derive(Debug)]
pub(super) struct Trained {
    pub(super) step: usize,
    pub(super) report: StepReport,
    norm: Option<GradNorm>,
    lr: f64,
    /// How long its batch was waited for, and what came after that if all of it is over.
    waited: Duration,
    took: Option<Duration>,
}

/// Takes the next batch and has devices train on it; nothing at the end of the data. The
/// host waits only for those that are on the CPU.
pub(super) fn next(
    job: &Job,
    pipe: &mut Pipeline,
    optimizer: &mut Optimizer,
    batches: &mut Feed,
    step: usize,
) -> Result<Option<Trained>, Failure> {
    let begin = Instant::now();
    let Some((x, y)) = batches.next().transpose()? else {
        return Ok(None);
    };
    let waited = begin.elapsed();
    let begin = Instant::now();
    let report = pipe
        .train_step(x, y, job.chosen.spec.loss())
        .map_err(failure)?;
    let norm = clip(pipe, job.recipe.clip)?;
    let lr = job.rates.at(step as u64);
    optimizer.set_lr(lr);
    optimizer.step(pipe).map_err(failure)?;
    let took = report.is_ready().then(|| begin.elapsed());
    Ok(Some(Trained {
        step,
        report,
        norm,
        lr,
        waited,
        took,
    }))
}

/// Limits the gradients where that is asked for, and measures them otherwise: their norm.
fn clip(pipe: &mut Pipeline, limit: Option<f64>) -> Result<Option<GradNorm>, Failure> {
    match limit {
        Some(limit) => Ok(Some(pipe.clip_gradients(limit).map_err(failure)?)),
        // What cannot be measured the optimizer refuses, and names the parameter.
        None => Ok(pipe.clip_gradients(f64::INFINITY).ok()),
    }
}

impl Trained {
    /// Whether reading its numbers does not wait.
    pub(super) fn is_ready(&self) -> bool {
        self.took.is_some() || self.report.is_ready()
    }

    /// What the step came to; waits for devices that are still at it. Its time is, where it
    /// was not over when the host was done with it, that since the numbers of the one
    /// before were `read`: the host is ahead of devices then, and so would its time be.
    pub(super) fn metrics(&self, job: &Job, read: Instant) -> Result<StepMetrics, Failure> {
        let told = StepMetrics::of(self.step as u64, &self.report).map_err(failure)?;
        // A step that was skipped has left no gradients.
        let norm = self.norm.as_ref().filter(|_| !told.skipped);
        let norm = norm.map(GradNorm::read).transpose().map_err(failure)?;
        let (waited, took) = self.took.map_or_else(
            || {
                let all = read.elapsed();
                let waited = self.waited.min(all);
                (waited, all.saturating_sub(waited))
            },
            |took| (self.waited, took),
        );
        let metrics = StepMetrics {
            lr: self.lr,
            grad_norm: norm,
            chunks: job.recipe.chunks(),
            recompute: job.recipe.recompute.to_string(),
            ..told
        };
        let metrics = metrics.timed(job.recipe.batch, waited, took);
        Ok(with_rates(job, metrics))
    }
}

/// What follows from how fast it went.
fn with_rates(job: &Job, metrics: StepMetrics) -> StepMetrics {
    let samples = metrics.samples_per_s;
    let utilisation = job.utilisation.as_ref();
    StepMetrics {
        tokens_per_s: job.tokens.map(|tokens| tokens as f64 * samples),
        mfu: utilisation.map(|utilisation| utilisation.at(samples)),
        ..metrics
    }
}
