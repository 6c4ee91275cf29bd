//! The finite check of a step on asynchronous devices, without the host.
//!
//! A step with a number that is not finite is skipped on all stages, as PyTorch's
//! `GradScaler` does it. Where the host reads the numbers, it undoes the step
//! (`src/torch/pipeline/check_step.rs`). Where it does not wait for the devices, the check is a
//! number on each stage's device, `found_inf` (1: the step does not count), and work is
//! enqueued that is right in both cases:
//!
//! 1. clipping leaves gradients alone whose norm is not finite;
//! 2. the optimizer's kernels leave parameters and optimizer state as they are where
//!    `found_inf` is 1, and buffers get back what they held before the step;
//! 3. a stage whose parameters, buffers or gradients are read before that, or whose
//!    gradients are to be added to, waits for its `found_inf`, and undoes the step if it is 1;
//! 4. the loss scale is a number on a device too, and is updated from `found_inf` there
//!    (`src/torch/pipeline/device_loss_scale.rs`). The host does the same arithmetic when it reads
//!    the checks: so it knows the scale, and when it cannot become smaller.
//!
//! All stages have the same `found_inf`, made from the gradients of all: no step is half done.

use std::sync::Arc;

use parking_lot::Mutex;
use tch::{Kind, Tensor};

use super::device_loss_scale::DeviceLossScale;
use super::losses::Losses;
use super::readback::Readback;
use super::stages::{Stages, in_model_order};
use crate::TorchError;
use crate::error::Error;

/// A finite check whose result the host reads later.
#[derive(Debug)]
#[doc(alias = "found_inf")]
pub(super) struct FiniteCheck {
    /// The loss scale of the step (1 without one), then the norm of each gradient.
    numbers: Readback,
    /// Names of the parameters of these gradients.
    names: Arc<[String]>,
    /// The losses, if they are checked as well.
    losses: Option<Losses>,
}

/// The same check, for use on the stages' devices.
#[derive(Debug)]
pub(super) struct DeviceFiniteCheck {
    /// `f32` scalar: 1 if the step does not count, else 0.
    pub(super) found_inf: Tensor,
    /// `f32` scalar by which gradients must still be multiplied.
    pub(super) factor: Option<Tensor>,
}

impl FiniteCheck {
    /// Checks the step that just ended; `None` if the host has to read the numbers: gradients are
    /// not dense `f32`, earlier ones wait to be added to, or layers have gathered data that counts
    /// only after a good step.
    pub(super) fn of_step(
        stages: &mut Stages,
        losses: &Losses,
        losses_count: bool,
        scale: Option<&DeviceLossScale>,
    ) -> Result<Option<(Self, DeviceFiniteCheck)>, Error> {
        let parts = stages.on_owners(|_, stage| stage.deferrable_norms())?;
        let parts = parts.into_iter().map(|(copy, norms)| Some((copy, norms?)));
        let Some(parts) = parts.collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let (names, norms) = tch::no_grad(|| in_model_order(parts))?;
        let (blob, on_devices) =
            tch::no_grad(|| check_on_devices(&norms, losses, losses_count, scale))?;
        let check = Self {
            numbers: Readback::new(stages, &blob, "the norms of the gradients")?,
            names: names.into(),
            losses: losses_count.then(|| losses.shallow_clone()),
        };
        Ok(Some((check, on_devices)))
    }

    /// Returns another handle to the same check.
    pub(super) fn shallow_clone(&self) -> Self {
        Self {
            numbers: self.numbers.shallow_clone(),
            names: Arc::clone(&self.names),
            losses: self.losses.as_ref().map(Losses::shallow_clone),
        }
    }

    /// Returns whether [`FiniteCheck::read`] would not wait.
    pub(super) fn is_ready(&self) -> bool {
        self.numbers.is_ready() && self.losses.as_ref().is_none_or(Losses::is_ready)
    }

    /// See [`Readback::in_time`].
    pub(super) fn in_time(&self) -> Result<(), TorchError> {
        self.numbers.in_time()?;
        self.losses.as_ref().map_or(Ok(()), Losses::in_time)
    }

    /// Returns a description of a non-finite value, if there is one, and the loss scale of the
    /// step.
    pub(super) fn read(&self) -> Result<(Option<String>, f64), TorchError> {
        let numbers = self.numbers.read()?;
        let (scale, norms) = numbers.split_first().unwrap_or((&f64::NAN, &[]));
        if let Some(losses) = &self.losses {
            let loss = losses.total()?;
            if !loss.is_finite() {
                return Ok((Some(format!("the loss ({loss})")), *scale));
            }
        }
        let bad = norms.iter().position(|norm| !norm.is_finite());
        let name = bad.and_then(|place| self.names.get(place));
        Ok((name.map(|name| format!("the gradient of `{name}`")), *scale))
    }
}

impl DeviceFiniteCheck {
    /// Sends `found_inf` and the factor to every stage.
    pub(super) fn broadcast(self, stages: &mut Stages) -> Result<(), Error> {
        // Tensors may move between threads, but not be shared.
        let own = Mutex::new(self);
        stages.on_each(move |_, stage| {
            let (found_inf, factor) = {
                let own = own.lock();
                let factor = own.factor.as_ref().map(Tensor::shallow_clone);
                (own.found_inf.shallow_clone(), factor)
            };
            stage.accumulator().defer(&found_inf, factor.as_ref())
        })?;
        Ok(())
    }
}

/// Makes the numbers that the host will read, and the check for the stages.
fn check_on_devices(
    norms: &Tensor,
    losses: &Losses,
    losses_count: bool,
    scale: Option<&DeviceLossScale>,
) -> Result<(Tensor, DeviceFiniteCheck), TorchError> {
    let here = losses.on_device().device();
    let norms = norms.f_to_device(here)?;
    let mut finite = norms.f_isfinite()?.f_all()?;
    if losses_count {
        let of_losses = losses.on_device().f_isfinite()?.f_all()?;
        finite = finite.f_logical_and(&of_losses)?;
    }
    let own = match scale {
        Some(own) => own.tensor().f_to_device(here)?.f_to_kind(Kind::Double)?,
        None => Tensor::f_ones([], (Kind::Double, here))?,
    };
    let factor = match (losses.weight_scale(), scale) {
        (None, None) => None,
        (weights, _) => {
            let weights = own.f_full_like(weights.unwrap_or(1.0))?;
            Some(weights.f_div(&own)?.f_to_kind(Kind::Float)?)
        }
    };
    let blob = Tensor::f_cat(&[own.f_reshape([1])?, norms], 0)?;
    let found_inf = finite.f_logical_not()?.f_to_kind(Kind::Float)?;
    Ok((blob, DeviceFiniteCheck { found_inf, factor }))
}
