//! One step: what it is given, gradients of a batch, the update by them, and what that came to.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpipe_partitioner::{CheckedSchedule, Plan};
use tch::Tensor;

use super::error::TrainError;
use super::feed::Feed;
use super::report::Files;
use crate::metrics::StepMetrics;
use gpipe_torch::{GradNorm, Loss, LossFn, LrSchedule, Optimizer, Pipeline, StepReport, Values};

/// What is chosen about each step.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) steps: Option<usize>,
    pub(super) lr: Option<LrSchedule>,
    pub(super) clip: Option<f64>,
    /// The target that does not count in the accuracy on held-out data, where that is measured.
    pub(super) accuracy: Option<i64>,
    pub(super) plan: Option<Plan>,
    /// What the model is called.
    pub(super) model: Option<String>,
    pub(super) files: Files,
}

/// A loss function whose type is forgotten.
#[derive(Clone)]
pub(super) struct SharedLoss(pub(super) Arc<dyn LossFn>);

impl fmt::Debug for SharedLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedLoss")
    }
}

impl LossFn for SharedLoss {
    fn loss(&self, outputs: &Values, targets: &Values) -> anyhow::Result<Loss> {
        self.0.loss(outputs, targets)
    }
}

/// A step whose numbers may still be on devices: the host is ahead of it.
#[derive(Debug)]
pub(super) struct PendingStep {
    pub(super) step: usize,
    pub(super) report: StepReport,
    /// What it ran, where that is looked at.
    pub(super) schedule: Option<CheckedSchedule>,
    samples: usize,
    norm: Option<GradNorm>,
    lr: f64,
    /// How long its batch was waited for, and what came after that if all of it is over.
    waited: Duration,
    took: Option<Duration>,
}

/// Takes the next batch and has devices train on it; nothing at the end of the data. The
/// host waits only for those that are on the CPU. Where the step `is_looked_at`, it knows what it ran.
pub(super) fn next(
    pipe: &mut Pipeline,
    optimizer: &mut Optimizer,
    batches: &mut dyn Feed,
    loss: &SharedLoss,
    settings: &Settings,
    (step, is_looked_at): (usize, bool),
) -> Result<Option<PendingStep>, TrainError> {
    // A computed schedule may change after a step: what counts is the one before.
    let schedule = is_looked_at.then(|| pipe.schedule());
    let schedule = schedule.transpose()?;
    let begin = Instant::now();
    let Some(batch) = batches.next_batch() else {
        return Ok(None);
    };
    let (x, y) = batch.map_err(|error| {
        pipe.refuse(&format!("the next batch: {error:#}"));
        TrainError::Data(error)
    })?;
    let waited = begin.elapsed();
    let begin = Instant::now();
    let samples = x.present().next().map(Tensor::size);
    let samples = samples.and_then(|size| size.first().copied()).unwrap_or(0);
    let report = pipe.train_step(x, y, loss.clone())?;
    let norm = clip(pipe, settings.clip)?;
    if let Some(rates) = &settings.lr {
        optimizer.set_lr(rates.at(step as u64));
    }
    let lr = optimizer.lr();
    optimizer.step(pipe)?;
    let took = report.is_ready().then(|| begin.elapsed());
    Ok(Some(PendingStep {
        step,
        report,
        schedule,
        samples: samples as usize,
        norm,
        lr,
        waited,
        took,
    }))
}

/// Limits the gradients where that is asked for, and measures them otherwise: their norm.
fn clip(pipe: &mut Pipeline, limit: Option<f64>) -> Result<Option<GradNorm>, TrainError> {
    match limit {
        Some(limit) => Ok(Some(pipe.clip_gradients(limit)?)),
        // What cannot be measured the optimizer refuses, and names the parameter.
        None => Ok(pipe.clip_gradients(f64::INFINITY).ok()),
    }
}

impl PendingStep {
    /// Whether reading its numbers does not wait.
    pub(super) fn is_ready(&self) -> bool {
        self.took.is_some() || self.report.is_ready()
    }

    /// What the step came to; waits for devices that are still at it. Its time is, where it
    /// was not over when the host was done with it, that since the numbers of the one
    /// before were `read`: the host is ahead of devices then, and so would its time be. What has
    /// elapsed is the time since the numbers of the step before were `told`, which is set anew.
    pub(super) fn metrics(
        &self,
        read: Instant,
        told: &mut Instant,
    ) -> Result<StepMetrics, TrainError> {
        let numbers = StepMetrics::of(self.step as u64, &self.report)?;
        // A step that was skipped has left no gradients.
        let norm = self.norm.as_ref().filter(|_| !numbers.skipped);
        let norm = norm.map(GradNorm::read).transpose()?;
        let (waited, took) = self.took.map_or_else(
            || {
                let all = read.elapsed();
                let waited = self.waited.min(all);
                (waited, all.saturating_sub(waited))
            },
            |took| (self.waited, took),
        );
        let elapsed = told.elapsed();
        *told += elapsed;
        let metrics = StepMetrics {
            samples: self.samples as u64,
            lr: self.lr,
            grad_norm: norm,
            ..numbers
        };
        Ok(metrics.timed(self.samples, elapsed, waited, took))
    }
}
