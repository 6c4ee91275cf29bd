//! Values and gradients passed from layer to layer.

use std::collections::HashMap;

use tch::{Device, Tensor};

use super::Sample;
use crate::error::Error;
use crate::{TorchError, Values, copy_tensor, tensor_bytes};

/// Values between layers, for one micro-batch size.
#[derive(Debug, Default)]
pub(super) struct Flow {
    pub(super) main: Values,
    pub(super) targets: Values,
    /// Skip values in transit.
    pub(super) skips: HashMap<usize, Values>,
}

impl Flow {
    /// Takes the first `size` samples.
    pub(super) fn new(sample: &Sample, size: usize) -> Result<Self, TorchError> {
        let part = |values: &Values| {
            let first = |tensor: Tensor| -> Result<Tensor, TorchError> {
                // A copy: layers may write to it, and the caller's tensor must stay as it is.
                let part = tch::no_grad(|| copy_tensor(&tensor.f_narrow(0, 0, size as i64)?))?;
                Ok(part.f_set_requires_grad(tensor.requires_grad())?)
            };
            values.shallow_clone().try_map(first)
        };
        let targets = sample.loss.as_ref().map(|(targets, _)| part(targets));
        Ok(Self {
            main: part(&sample.input)?,
            targets: targets.transpose()?.unwrap_or_default(),
            skips: HashMap::new(),
        })
    }

    /// Moves the flow to a device: in a pipeline this copy is no layer's work, and the host waits
    /// for copies of memory that is not page-locked.
    pub(super) fn on(self, device: Device) -> Result<Self, TorchError> {
        let there = |tensor: Tensor| -> Result<Tensor, TorchError> {
            if tensor.device() == device {
                return Ok(tensor);
            }
            let wants = tensor.requires_grad();
            let there = tch::no_grad(|| tensor.f_to_device(device))?;
            Ok(there.f_set_requires_grad(wants)?)
        };
        Ok(Self {
            main: self.main.try_map(there)?,
            targets: self.targets.try_map(there)?,
            ..self
        })
    }

    /// Replaces the flow by a layer's outputs; the targets stay for the last layer.
    pub(super) fn pass_on(&mut self, out: Self) {
        let targets = std::mem::take(&mut self.targets);
        *self = Self { targets, ..out };
    }

    pub(super) fn shallow_clone(&self) -> Self {
        let skips = self.skips.iter();
        Self {
            main: self.main.shallow_clone(),
            targets: self.targets.shallow_clone(),
            skips: skips.map(|(id, v)| (*id, v.shallow_clone())).collect(),
        }
    }
}

/// Makes up gradients for the last layer's outputs where no loss follows: of the same shapes and of
/// about the size of the values.
pub(super) fn upstream(out: &Flow) -> Result<Flow, Error> {
    let like = |tensor: Tensor| tensor.f_detach().map_err(TorchError::from);
    let grads = |values: &Values| {
        let wanted = values.iter().map(|value| {
            let value = value.filter(|tensor| tensor.requires_grad());
            value.map(Tensor::shallow_clone)
        });
        wanted.collect::<Values>().try_map(like)
    };
    Ok(Flow {
        main: grads(&out.main)?,
        targets: Values::new(),
        skips: out
            .skips
            .iter()
            .map(|(id, values)| Ok((*id, grads(values)?)))
            .collect::<Result<_, TorchError>>()?,
    })
}

pub(super) fn values_bytes(values: &Values) -> u64 {
    values.present().map(tensor_bytes).sum()
}
