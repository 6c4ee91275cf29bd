//! A step: its settings, the gradients of a batch, the update, and their metrics.

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

/// Settings of each step.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) steps: Option<usize>,
    pub(super) lr: Option<LrSchedule>,
    pub(super) clip: Option<f64>,
    /// The target ignored by the held-out accuracy, if that is measured.
    pub(super) accuracy: Option<i64>,
    pub(super) plan: Option<Plan>,
    /// Name of the model.
    pub(super) model: Option<String>,
    pub(super) files: Files,
}

/// A type-erased loss function.
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

/// A step whose results may still be on devices, as the host runs ahead.
#[derive(Debug)]
pub(super) struct PendingStep {
    pub(super) step: usize,
    pub(super) report: StepReport,
    /// The executed schedule, if the step is analysed.
    pub(super) schedule: Option<CheckedSchedule>,
    samples: usize,
    norm: Option<GradNorm>,
    lr: f64,
    /// Time spent waiting for its batch, and the time of the rest if all of it is done.
    waited: Duration,
    took: Option<Duration>,
}

/// Takes the next batch and starts training on it; `None` at the end of the data. The host waits only
/// for CPU devices. If the step `is_looked_at`, its schedule is recorded.
pub(super) fn next(
    pipe: &mut Pipeline,
    optimizer: &mut Optimizer,
    batches: &mut dyn Feed,
    loss: &SharedLoss,
    settings: &Settings,
    (step, is_looked_at): (usize, bool),
) -> Result<Option<PendingStep>, TrainError> {
    // A computed schedule may change after a step: the one before it counts.
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

/// Clips the gradients if requested, and otherwise only measures their norm.
fn clip(pipe: &mut Pipeline, limit: Option<f64>) -> Result<Option<GradNorm>, TrainError> {
    match limit {
        Some(limit) => Ok(Some(pipe.clip_gradients(limit)?)),
        // The optimizer rejects gradients that cannot be measured, and names the parameter.
        None => Ok(pipe.clip_gradients(f64::INFINITY).ok()),
    }
}

impl PendingStep {
    /// Whether reading the results does not block.
    pub(super) fn is_ready(&self) -> bool {
        self.took.is_some() || self.report.is_ready()
    }

    /// Returns the metrics of the step; waits for devices that are still busy. If it was not done when
    /// the host was, its time is the time since the results of the previous step were `read`, as the
    /// host runs ahead of the devices. The elapsed time counts from `told`, when the previous results
    /// were known, which is updated.
    pub(super) fn metrics(
        &self,
        read: Instant,
        told: &mut Instant,
    ) -> Result<StepMetrics, TrainError> {
        let numbers = StepMetrics::of(self.step as u64, &self.report)?;
        // A skipped step leaves no gradients.
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
