//! What a training step tells.

use gpipe_partitioner::{CheckedSchedule, Timeline, simulate};

use super::MemoryReport;
use crate::error::Error;
use crate::torch::{TorchError, Values};

/// The result of one training step.
#[derive(Debug)]
pub struct StepReport {
    /// The exact mini-batch loss: the micro-batches' losses weighted by their
    /// samples (or by the weights the loss function gave), added in order.
    pub loss: f64,
    /// When each action ran.
    pub timeline: Timeline,
    /// The same schedule simulated with each stage's median times of this step:
    /// what it would have taken without waiting for anything but data.
    pub predicted: Timeline,
    /// Gradient of the input, where it required one.
    pub input_gradient: Option<Values>,
    /// What was not finite, in words, where the step was skipped for it
    /// ([`NonFinite::Skip`](crate::NonFinite::Skip), or an overflow of
    /// [`Precision::Fp16`](crate::Precision::Fp16)): the loss is then that of the
    /// skipped step, and gradients and buffers are what they were before.
    pub non_finite: Option<String>,
    /// What the loss's gradient was multiplied with in this step, where it was. All
    /// gradients have been divided by it.
    pub loss_scale: Option<f64>,
    /// What activations took, where the pipeline measures it
    /// ([`PipelineBuilder::measure_memory`](crate::PipelineBuilder::measure_memory)).
    pub memory: Option<MemoryReport>,
    /// Where devices work by themselves: the largest share of a device's time in this
    /// step, from its first action to its last, in which its host thread was busy
    /// telling it what to do. See [`StepReport::is_host_bound`].
    pub host_share: Option<f64>,
}

impl StepReport {
    pub(super) fn new(loss: f64, timeline: Timeline, schedule: &CheckedSchedule) -> Self {
        let costs = timeline.stage_costs(schedule.schedule().stages());
        let predicted = simulate(&one_by_one(schedule), &costs).timeline;
        Self {
            loss,
            timeline,
            predicted,
            input_gradient: None,
            non_finite: None,
            loss_scale: None,
            memory: None,
            host_share: None,
        }
    }

    /// Whether a device had to wait for its host thread, which was busy nearly all the
    /// time: larger micro-batches help then, and faster kernels do not.
    pub fn is_host_bound(&self) -> bool {
        self.host_share.is_some_and(|share| share > 0.9)
    }

    /// Whether the step was undone because something in it was not finite.
    pub fn skipped(&self) -> bool {
        self.non_finite.is_some()
    }

    /// Idle share of device time in this step, 0 to 1.
    pub fn bubble_measured(&self) -> f64 {
        self.timeline.bubble_fraction()
    }

    /// Idle share of device time that the schedule itself costs with these
    /// stages' times, 0 to 1.
    pub fn bubble_predicted(&self) -> f64 {
        self.predicted.bubble_fraction()
    }
}

/// The schedule as a stage runs it: an overlapped pair one after the other, the
/// first result leaving at once.
fn one_by_one(schedule: &CheckedSchedule) -> CheckedSchedule {
    let plain = schedule.schedule().clone().with_pairs(Vec::new());
    // Without pairs there are fewer rules to break.
    plain.check().unwrap_or_else(|_| schedule.clone())
}

/// The losses of all micro-batches, put together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Losses {
    pub(super) total: f64,
    /// What the gradients must still be multiplied with: they were weighted by
    /// the loss function's own weights, whose sum only now is known.
    pub(super) scale: Option<f64>,
}

impl Losses {
    /// What gradients must still be multiplied with, of a step under this loss scale.
    pub(super) fn factor(&self, loss_scale: Option<f64>) -> Option<f64> {
        match (self.scale, loss_scale) {
            (None, None) => None,
            // Powers of two: dividing by one loses no bits.
            (own, scale) => Some(own.unwrap_or(1.0) / scale.unwrap_or(1.0)),
        }
    }
}

/// Adds up what the last stage sent, in micro-batch order.
pub(super) fn losses(parts: impl Iterator<Item = Values>, shares: &[f64]) -> Result<Losses, Error> {
    let (mut sum, mut weights, mut own) = (0.0, 0.0, 0);
    let mut count = 0;
    for (part, share) in parts.zip(shares) {
        let value = number(&part, 0)?.unwrap_or(f64::NAN);
        let weight = number(&part, 1)?;
        own += usize::from(weight.is_some());
        count += 1;
        sum += value * weight.unwrap_or(*share);
        weights += weight.unwrap_or(*share);
    }
    if own == 0 {
        return Ok(Losses {
            total: sum,
            scale: None,
        });
    }
    if own < count {
        let message = "the loss function gave some micro-batches a weight and others none";
        return Err(Error::Settings(message.to_owned()));
    }
    if weights <= 0.0 {
        return Err(Error::Settings(
            "the weights of the loss function sum to zero".to_owned(),
        ));
    }
    Ok(Losses {
        total: sum / weights,
        scale: Some(1.0 / weights),
    })
}

fn number(values: &Values, index: usize) -> Result<Option<f64>, TorchError> {
    values
        .get(index)
        .map(|tensor| Ok(tensor.f_double_value(&[])?))
        .transpose()
}
