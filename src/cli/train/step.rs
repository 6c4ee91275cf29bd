//! One step: gradients of a batch, the update by them, and what that came to.

use std::time::Instant;

use super::job::Job;
use super::{Failure, failure};
use crate::cli::feed::Feed;
use crate::metrics::StepMetrics;
use crate::{Optimizer, Pipeline, StepReport, Values};

/// Takes the next batch and trains on it; nothing at the end of the data.
pub(super) fn next(
    job: &Job,
    pipe: &mut Pipeline,
    optimizer: &mut Optimizer,
    batches: &mut Feed,
    step: usize,
) -> Result<Option<(StepMetrics, StepReport)>, Failure> {
    let begin = Instant::now();
    let Some(batch) = batches.next().transpose()? else {
        return Ok(None);
    };
    let waited = begin.elapsed();
    let begin = Instant::now();
    let (metrics, report) = trained(job, pipe, optimizer, step, batch)?;
    let metrics = metrics.timed(job.recipe.batch, waited, begin.elapsed());
    Ok(Some((with_rates(job, metrics), report)))
}

/// Gradients of a batch and the update by them; what it came to, but for its speed.
fn trained(
    job: &Job,
    pipe: &mut Pipeline,
    optimizer: &mut Optimizer,
    step: usize,
    (x, y): (Values, Values),
) -> Result<(StepMetrics, StepReport), Failure> {
    let report = pipe
        .train_step(x, y, job.chosen.spec.loss())
        .map_err(failure)?;
    // A step that was skipped has left no gradients.
    let grad_norm = if report.skipped() {
        None
    } else {
        clip(pipe, job.recipe.clip)?
    };
    let lr = job.rates.at(step as u64);
    optimizer.set_lr(lr);
    optimizer.step(pipe).map_err(failure)?;
    let metrics = StepMetrics {
        lr,
        grad_norm,
        chunks: job.recipe.chunks(),
        recompute: job.recipe.recompute.to_string(),
        ..StepMetrics::of(step as u64, &report)
    };
    Ok((metrics, report))
}

/// Limits the gradients where that is asked for, and measures them otherwise: their norm.
fn clip(pipe: &mut Pipeline, limit: Option<f64>) -> Result<Option<f64>, Failure> {
    match limit {
        Some(limit) => Ok(Some(pipe.clip_grad_norm(limit).map_err(failure)?)),
        // What cannot be measured the optimizer refuses, and names the parameter.
        None => Ok(pipe.clip_grad_norm(f64::INFINITY).ok()),
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
