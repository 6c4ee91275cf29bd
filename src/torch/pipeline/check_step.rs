//! Validity check of the step that just ended, and unscaling of its gradients.

use tch::Tensor;

use super::Pipeline;
use super::finite_check::{DeviceFiniteCheck, FiniteCheck};
use super::loss_scale::Scaler;
use super::losses::Losses;
use crate::error::Error;
use crate::{NonFinite, TorchError, Values, operators};

/// A step, checked and unscaled.
#[derive(Debug)]
pub(super) struct CheckedStep {
    pub(super) non_finite: Option<String>,
    /// The loss scale of the step; NaN if only devices know it.
    pub(super) loss_scale: Option<f64>,
    /// The check, if the host has not read it.
    pub(super) check: Option<FiniteCheck>,
    pub(super) input_gradient: Option<Values>,
}

impl Pipeline {
    /// Returns the factor by which the engine multiplies losses; 1 if the scale is on a device.
    pub(super) fn loss_scale_of_step(&self) -> Option<f64> {
        let scaler = self.scaler.as_ref()?;
        Some(match scaler.on_device() {
            Some(_) => 1.0,
            None => scaler.scale(),
        })
    }

    /// Unscales the gradients of the step that just ended, including the input's, to those of the
    /// mini-batch's loss; undoes the step if it does not count.
    #[doc(alias = "unscale")]
    pub(super) fn check_step(
        &mut self,
        losses: &Losses,
        input_gradient: Option<Values>,
    ) -> Result<CheckedStep, Error> {
        let losses_count = self.non_finite == NonFinite::Skip;
        let looks = losses_count || self.scaler.is_some();
        let scale = self.scaler.as_ref().map(Scaler::on_device);
        // Each replica has its own factor if replicas train alone.
        let by_host = matches!(scale, Some(None)) || self.engine.train_alone();
        if looks && self.engine.all_async() && !by_host {
            let watch = self.engine.watch()?;
            let scale = scale.flatten();
            let checks = FiniteCheck::of_step(&mut self.engine, losses, losses_count, scale)?;
            if let Some((check, on_devices)) = checks {
                return self.check_on_devices(check, on_devices, input_gradient);
            }
            drop(watch);
        }
        self.check_on_host(losses, losses_count, looks, input_gradient)
    }

    /// Reads the numbers on the host, and undoes a step that does not count.
    fn check_on_host(
        &mut self,
        losses: &Losses,
        losses_count: bool,
        looks: bool,
        input_gradient: Option<Values>,
    ) -> Result<CheckedStep, Error> {
        self.scaler.as_mut().map_or(Ok(()), |own| own.poll(true))?;
        let loss_scale = self.scaler.as_ref().map(Scaler::scale);
        let of_input = if losses.is_one() {
            losses.factor(0, loss_scale)
        } else {
            loss_scale.map(|scale| 1.0 / scale)
        };
        let factors = self.factors(losses, loss_scale);
        let input_gradient = unscaled(input_gradient, of_input, |grad, factor| {
            operators(|| grad.f_mul_scalar(factor))
        })?;
        let non_finite = if looks {
            self.not_finite(losses, losses_count)?
        } else {
            None
        };
        if let Some(what) = &non_finite {
            self.undo()?;
            if let Some(scaler) = &mut self.scaler {
                scaler.update_device(true)?;
                scaler.overflowed(what)?;
            }
        } else {
            self.ties.sum(&mut self.engine)?;
            if factors.iter().any(Option::is_some) {
                self.engine.on_each(move |_, stage| {
                    let factor = factors.get(stage.replica()).copied().flatten();
                    Ok(stage.accumulator().scale(factor.unwrap_or(1.0))?)
                })?;
            }
            if let Some(scaler) = &mut self.scaler {
                scaler.update_device(false)?;
                scaler.succeeded();
            }
        }
        Ok(CheckedStep {
            non_finite,
            loss_scale,
            check: None,
            input_gradient,
        })
    }

    /// Returns, by replica, the factor by which gradients must still be multiplied.
    fn factors(&self, losses: &Losses, loss_scale: Option<f64>) -> Vec<Option<f64>> {
        let all = 0..self.engine.replicas();
        all.map(|replica| losses.factor(replica, loss_scale))
            .collect()
    }

    /// Lets the devices check, and enqueues work that is right in both cases; the host reads the
    /// result later.
    fn check_on_devices(
        &mut self,
        check: FiniteCheck,
        on_devices: DeviceFiniteCheck,
        input_gradient: Option<Values>,
    ) -> Result<CheckedStep, Error> {
        let input_gradient = unscaled(
            input_gradient,
            on_devices.factor.as_ref(),
            |grad, factor| {
                let factor = factor.f_to_device(grad.device())?.f_to_kind(grad.kind())?;
                Ok(grad.f_mul(&factor)?)
            },
        )?;
        self.ties.sum(&mut self.engine)?;
        let found_inf = on_devices.found_inf.shallow_clone();
        on_devices.broadcast(&mut self.engine)?;
        if let Some(scaler) = &mut self.scaler {
            scaler.defer(&found_inf, check.shallow_clone())?;
        }
        Ok(CheckedStep {
            non_finite: None,
            loss_scale: self.scaler.as_ref().map(|_| f64::NAN),
            check: Some(check),
            input_gradient,
        })
    }

    /// Returns the name of a non-finite value of the step that just ended.
    fn not_finite(&mut self, losses: &Losses, losses_count: bool) -> Result<Option<String>, Error> {
        if losses_count {
            let loss = losses.total()?;
            if !loss.is_finite() {
                return Ok(Some(format!("the loss ({loss})")));
            }
        }
        let found = self.engine.of_owners(|_, stage| {
            Ok(stage
                .accumulator()
                .first_non_finite()?
                .into_iter()
                .collect())
        })?;
        let first = found.into_iter().next();
        Ok(first.map(|name| format!("the gradient of `{name}`")))
    }
}

/// Multiplies the input's gradient by the factor, if both exist.
fn unscaled<F: Copy>(
    gradient: Option<Values>,
    factor: Option<F>,
    times: impl Fn(&Tensor, F) -> Result<Tensor, TorchError>,
) -> Result<Option<Values>, Error> {
    match (gradient, factor) {
        (Some(gradient), Some(factor)) => Ok(Some(gradient.try_map(|grad| times(&grad, factor))?)),
        (gradient, _) => Ok(gradient),
    }
}
