//! Combining the losses of all micro-batches.

use std::ops::Range;

use tch::{Device, Tensor};

use super::readback::Readback;
use super::stages::Stages;
use crate::error::{Error, Setting, SettingsError};
use crate::{BatchError, Reduction, TorchError, Values};

/// Loss of each micro-batch, in order, and how it becomes that of the mini-batch.
pub(super) type Parts = (Vec<f64>, Vec<Reduction>);

/// Share of each micro-batch in a loss.
#[derive(Debug, Clone)]
pub(super) struct Shares {
    /// Share of the combined samples that each micro-batch has.
    pub(super) of_micros: Vec<f64>,
    /// Micro-batches that are combined: all, or, if replicas train alone, those of each replica,
    /// which may be none.
    pub(super) together: Vec<Range<usize>>,
}

/// Losses sent by the last stage.
#[derive(Debug)]
pub(super) struct Losses {
    /// Loss of each micro-batch, in order.
    values: Readback,
    /// The same, on the device that computed them.
    on_device: Tensor,
    /// Weight of each in the mini-batch's loss.
    weights: Vec<f64>,
    /// Groups that are combined: see [`Shares`].
    together: Vec<Range<usize>>,
    /// Per group, the factor by which gradients must still be multiplied: they were weighted by the
    /// loss function's own weights, whose sum is known only after the step.
    weight_scales: Option<Vec<f64>>,
}

impl Losses {
    /// Takes what the last stage sent for each micro-batch, in order: the loss and its reduction.
    /// The host does not wait for losses.
    pub(super) fn new(
        stages: &Stages,
        parts: impl Iterator<Item = Values>,
        shares: &Shares,
    ) -> Result<Self, Error> {
        let (all, reductions) = sent(parts)?;
        Self::put_together(stages, all, &reductions, shares)
    }

    /// Takes the numbers that the process of the last stage has sent.
    pub(super) fn told(stages: &Stages, parts: &Parts, shares: &Shares) -> Result<Self, Error> {
        let all = Tensor::f_from_slice(&parts.0)?;
        Self::put_together(stages, all, &parts.1, shares)
    }

    /// Returns the losses as numbers; the host waits for them.
    pub(super) fn numbers(
        stages: &Stages,
        parts: impl Iterator<Item = Values>,
    ) -> Result<Parts, Error> {
        let (all, reductions) = sent(parts)?;
        let values = Readback::new(stages, &all, "the losses of the step")?.read()?;
        Ok((values, reductions))
    }

    fn put_together(
        stages: &Stages,
        all: Tensor,
        reductions: &[Reduction],
        shares: &Shares,
    ) -> Result<Self, Error> {
        check_same(reductions)?;
        let parts = reductions.iter().zip(&shares.of_micros);
        let weights: Vec<f64> = parts.map(|(own, share)| own.seed(*share)).collect();
        let weighted = matches!(reductions.first(), Some(Reduction::Weighted(_)));
        let together = shares.together.iter();
        let scales = together.map(|own| match weights.get(own.clone()) {
            Some(weights) if !weights.is_empty() => weight_scale(weights),
            _ => Ok(1.0),
        });
        let weight_scales = weighted
            .then(|| scales.collect::<Result<_, _>>())
            .transpose()?;
        Ok(Self {
            values: Readback::new(stages, &all, "the losses of the step")?,
            on_device: all,
            weights,
            together: shares.together.clone(),
            weight_scales,
        })
    }

    /// Makes the loss of a micro-batch that never arrives.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn of_a_failed_device() -> Self {
        Self {
            values: Readback::of_a_failed_device(),
            on_device: Tensor::from_slice(&[0.0]),
            weights: vec![1.0],
            together: std::iter::once(0..1).collect(),
            weight_scales: None,
        }
    }

    /// Returns another handle to the same numbers.
    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            values: self.values.shallow_clone(),
            on_device: self.on_device.shallow_clone(),
            weights: self.weights.clone(),
            together: self.together.clone(),
            weight_scales: self.weight_scales.clone(),
        }
    }

    /// Returns the loss of each micro-batch, on the device that computed them.
    pub(super) fn on_device(&self) -> &Tensor {
        &self.on_device
    }

    /// Returns whether all micro-batches are combined into one loss.
    pub(super) fn is_one(&self) -> bool {
        self.together.len() == 1
    }

    /// Returns the factor by which gradients must still be multiplied, apart from the loss scale,
    /// if all micro-batches are combined.
    pub(super) fn weight_scale(&self) -> Option<f64> {
        self.weight_scales.as_ref()?.first().copied()
    }

    /// Returns the same for the group of a micro-batch.
    pub(super) fn weight_scale_of(&self, micro: usize) -> Option<f64> {
        let group = self.together.iter().position(|own| own.contains(&micro))?;
        self.weight_scales.as_ref()?.get(group).copied()
    }

    /// Returns whether [`Losses::total`] would not wait.
    pub(super) fn is_ready(&self) -> bool {
        self.values.is_ready()
    }

    /// See [`Readback::in_time`].
    pub(super) fn in_time(&self) -> Result<(), TorchError> {
        self.values.in_time()
    }

    /// Returns the mini-batch's loss, added up in the order of the micro-batches; if replicas train
    /// alone, the mean of theirs.
    pub(super) fn total(&self) -> Result<f64, TorchError> {
        let values = self.values.read()?;
        let one = |own: &Range<usize>| {
            let weights = self.weights.get(own.clone()).unwrap_or_default();
            let parts = values.iter().skip(own.start).zip(weights);
            let sum = parts.fold(0.0, |sum, (value, weight)| sum + value * weight);
            if self.weight_scales.is_none() {
                return sum;
            }
            sum / weights.iter().fold(0.0, |sum, weight| sum + weight)
        };
        let some = self.together.iter().filter(|own| !own.is_empty());
        let all: Vec<f64> = some.map(one).collect();
        if let [one] = all[..] {
            return Ok(one);
        }
        let count = all.len() as f64;
        Ok(all.into_iter().fold(0.0, |sum, own| sum + own) / count)
    }

    /// Returns the factor by which a replica's gradients of a step with this loss scale must still
    /// be multiplied.
    pub(super) fn factor(&self, replica: usize, loss_scale: Option<f64>) -> Option<f64> {
        let of = if self.is_one() { 0 } else { replica };
        let weights = self.weight_scales.as_ref();
        match (weights.and_then(|all| all.get(of).copied()), loss_scale) {
            (None, None) => None,
            // The scale is a power of two: dividing by it is exact.
            (own, scale) => Some(own.unwrap_or(1.0) / scale.unwrap_or(1.0)),
        }
    }
}

/// Stacks the losses on the device that computed them, with their reductions.
fn sent(parts: impl Iterator<Item = Values>) -> Result<(Tensor, Vec<Reduction>), Error> {
    let (mut values, mut reductions) = (Vec::new(), Vec::new());
    for part in parts {
        let value = part.get(0).map(Tensor::shallow_clone);
        let value = value.unwrap_or_else(|| Tensor::from(f64::NAN));
        values.push(tch::no_grad(|| value.f_detach()?.f_reshape([]))?);
        // On the host already, so nothing waits.
        reductions.push(Reduction::from_tensor(part.get(1))?);
    }
    // Copies of the last stage may be on several devices.
    let device = values.first().map_or(Device::Cpu, Tensor::device);
    let there = values.iter().map(|value| value.f_to_device(device));
    let values: Vec<Tensor> = tch::no_grad(|| there.collect::<Result<_, _>>())?;
    Ok((tch::no_grad(|| Tensor::f_stack(&values, 0))?, reductions))
}

/// Checks that all micro-batches use the same reduction.
fn check_same(reductions: &[Reduction]) -> Result<(), Error> {
    let Some(first) = reductions.first() else {
        return Ok(());
    };
    let (one, names) = (first.name(), reductions.iter().map(|own| own.name()));
    match names.enumerate().find(|(_, name)| *name != one) {
        None => Ok(()),
        Some((micro, other)) => Err(wrong(format!(
            "the loss function gave a {one} for micro-batch 0 and a {other} for micro-batch \
             {micro}: a step has losses of one kind"
        ))),
    }
}

/// Returns the factor by which gradients weighted by these numbers must still be multiplied.
fn weight_scale(weights: &[f64]) -> Result<f64, Error> {
    let sum = weights.iter().fold(0.0, |sum, weight| sum + weight);
    if sum == 0.0 {
        return Err(BatchError::NoWeight.into());
    }
    let scale = 1.0 / sum;
    if sum.is_finite() && scale.is_finite() {
        return Ok(scale);
    }
    Err(wrong(format!(
        "the weights of the loss function sum to {sum}, which nothing can be divided by"
    )))
}

fn wrong(why: String) -> Error {
    SettingsError::invalid(Setting::Loss, why).into()
}
