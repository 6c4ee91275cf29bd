//! The losses of all micro-batches, put together.

use tch::Tensor;

use super::readback::Readback;
use super::stages::Stages;
use crate::error::Error;
use crate::torch::{TorchError, Values};

/// What the last stage sent.
#[derive(Debug)]
pub(super) struct Losses {
    /// The loss of each micro-batch, in their order.
    values: Readback,
    /// The same where they were made.
    there: Tensor,
    /// What each counts.
    weights: Vec<f64>,
    /// What the gradients must still be multiplied with: they were weighted by
    /// the loss function's own weights, whose sum only now is known.
    scale: Option<f64>,
}

impl Losses {
    /// Of what the last stage sent for each micro-batch, in their order: the loss, and the
    /// weight that the loss function gave it, if any. The host does not wait for losses.
    pub(super) fn new(
        stages: &Stages,
        parts: impl Iterator<Item = Values>,
        shares: &[f64],
    ) -> Result<Self, Error> {
        let (mut values, mut weights, mut own) = (Vec::new(), Vec::new(), 0);
        for (part, share) in parts.zip(shares) {
            let value = part.get(0).map(Tensor::shallow_clone);
            let value = value.unwrap_or_else(|| Tensor::from(f64::NAN));
            values.push(tch::no_grad(|| value.f_detach()?.f_reshape([]))?);
            // A number of the host: it stays there.
            let weight = part.get(1).map(|weight| weight.f_double_value(&[]));
            let weight = weight.transpose()?;
            own += usize::from(weight.is_some());
            weights.push(weight.unwrap_or(*share));
        }
        let scale = scale(own, &weights)?;
        let all = tch::no_grad(|| Tensor::f_stack(&values, 0))?;
        Ok(Self {
            values: Readback::new(stages, &all)?,
            there: all,
            weights,
            scale,
        })
    }

    /// The same for somebody else.
    pub(super) fn share(&self) -> Self {
        Self {
            values: self.values.share(),
            there: self.there.shallow_clone(),
            weights: self.weights.clone(),
            scale: self.scale,
        }
    }

    /// The loss of each micro-batch, on the device that made them.
    pub(super) fn there(&self) -> &Tensor {
        &self.there
    }

    /// What the gradients must still be multiplied with, whatever the loss scale.
    pub(super) fn scale(&self) -> Option<f64> {
        self.scale
    }

    /// Whether [`Losses::total`] would not wait.
    pub(super) fn is_ready(&self) -> bool {
        self.values.is_ready()
    }

    /// The mini-batch's loss, added up in the order of the micro-batches.
    pub(super) fn total(&self) -> Result<f64, TorchError> {
        let values = self.values.read()?;
        let parts = values.iter().zip(&self.weights);
        let sum = parts.fold(0.0, |sum, (value, weight)| sum + value * weight);
        if self.scale.is_none() {
            return Ok(sum);
        }
        let weights = self.weights.iter().fold(0.0, |sum, weight| sum + weight);
        Ok(sum / weights)
    }

    /// What gradients must still be multiplied with, of a step under this loss scale.
    pub(super) fn factor(&self, loss_scale: Option<f64>) -> Option<f64> {
        match (self.scale, loss_scale) {
            (None, None) => None,
            // Powers of two: dividing by one loses no bits.
            (own, scale) => Some(own.unwrap_or(1.0) / scale.unwrap_or(1.0)),
        }
    }
}

/// What is still owed where `own` of the weights are the loss function's.
fn scale(own: usize, weights: &[f64]) -> Result<Option<f64>, Error> {
    if own == 0 {
        return Ok(None);
    }
    if own < weights.len() {
        let message = "the loss function gave some micro-batches a weight and others none";
        return Err(Error::Settings(message.to_owned()));
    }
    let sum = weights.iter().fold(0.0, |sum, weight| sum + weight);
    if sum <= 0.0 {
        return Err(Error::Settings(
            "the weights of the loss function sum to zero".to_owned(),
        ));
    }
    Ok(Some(1.0 / sum))
}
