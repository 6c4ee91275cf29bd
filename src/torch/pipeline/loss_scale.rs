//! Dynamic loss scaling, which keeps gradients in the range of half precision.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::{Device, Tensor};

use super::Pipeline;
use super::device_loss_scale::{DeviceLossScale, LARGEST, SMALLEST};
use super::finite_check::FiniteCheck;
use crate::TorchError;
use crate::error::{Error, Setting, SettingsError, SettingsRule};

/// Settings of the loss scale for [`Precision::Fp16`](crate::Precision::Fp16) (Micikevicius et al.
/// 2018): the loss's gradient is multiplied by a scale, and the parameters' gradients are divided
/// by it after the step.
///
/// A step with a non-finite gradient is skipped on all stages, and the scale is halved. Enough
/// consecutive good steps double it. Scales are powers of two, so that multiplying and dividing by
/// them is exact.
#[doc(alias = "GradScaler")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScale {
    /// Scale of the first step, a power of two; 65,536 by default.
    pub initial: f64,
    /// Consecutive good steps until the scale is doubled; 2,000 by default.
    pub growth_interval: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self {
            initial: 65536.0,
            growth_interval: 2000,
        }
    }
}

/// The loss scale of a pipeline (`torch.amp.GradScaler`).
#[derive(Debug)]
#[doc(alias = "GradScaler")]
pub(super) struct Scaler {
    growth_interval: u64,
    /// State after all steps but the pending ones.
    state: State,
    /// State after all steps, if all devices are asynchronous.
    on_device: Option<DeviceLossScale>,
    /// Checks of later steps that the host has not read, the oldest first.
    pending: VecDeque<FiniteCheck>,
}

/// Saved state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    scale: f64,
    good_steps: u64,
}

impl Scaler {
    /// # Errors
    /// [`Error::Settings`] for an invalid scale or interval.
    pub(super) fn new(settings: LossScale) -> Result<Self, Error> {
        if settings.growth_interval == 0 {
            return Err(SettingsError::new(Setting::LossScale, SettingsRule::None).into());
        }
        let state = State {
            scale: settings.initial,
            good_steps: 0,
        };
        Ok(Self {
            growth_interval: settings.growth_interval,
            state: (state.checked())
                .map_err(|why| SettingsError::invalid(Setting::LossScale, why))?,
            on_device: None,
            pending: VecDeque::new(),
        })
    }

    /// Keeps the scale on this device from now on; returns its tensor there.
    pub(super) fn move_to_device(&mut self, device: Device) -> Result<Tensor, TorchError> {
        let State { scale, good_steps } = self.state;
        let on_device = DeviceLossScale::new(device, scale, good_steps, self.growth_interval)?;
        let tensor = on_device.tensor();
        self.pending.clear();
        self.on_device = Some(on_device);
        Ok(tensor)
    }

    pub(super) fn on_device(&self) -> Option<&DeviceLossScale> {
        self.on_device.as_ref()
    }

    /// Counts a step of which only devices know whether it counts.
    pub(super) fn defer(
        &mut self,
        found_inf: &Tensor,
        check: FiniteCheck,
    ) -> Result<(), TorchError> {
        self.pending.push_back(check);
        match &mut self.on_device {
            Some(on_device) => on_device.update(found_inf),
            None => Ok(()),
        }
    }

    /// Updates the device's scale after a step that the host has checked.
    pub(super) fn update_device(&mut self, found_inf: bool) -> Result<(), TorchError> {
        match &mut self.on_device {
            Some(on_device) => {
                on_device.update(&Tensor::from(if found_inf { 1.0_f32 } else { 0.0 }))
            }
            None => Ok(()),
        }
    }

    /// Reads the pending checks that are ready, or waits for all of them.
    ///
    /// # Errors
    /// [`Error::LossScale`] if a smaller scale would not have helped in a step. A device failed.
    pub(super) fn poll(&mut self, all: bool) -> Result<(), Error> {
        while let Some(check) = self.pending.front()
            && (all || check.is_ready())
        {
            let what = check.read()?.0;
            self.pending.pop_front();
            self.state.update(what.as_deref(), self.growth_interval)?;
        }
        Ok(())
    }

    /// Returns the state after all steps; waits for the pending checks.
    fn last_state(&self) -> State {
        let mut state = self.state;
        for check in &self.pending {
            // The next step reports a device that failed,
            let Ok((what, _)) = check.read() else { break };
            // and a scale that is too small.
            let _ = state.update(what.as_deref(), self.growth_interval);
        }
        state
    }

    /// Returns the state after all steps known to the host.
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Discards the steps since `state`.
    pub(super) fn go_back(&mut self, state: State) {
        self.state = state;
    }

    pub(super) fn scale(&self) -> f64 {
        self.last_state().scale
    }

    pub(super) fn succeeded(&mut self) {
        self.state.succeeded(self.growth_interval);
    }

    /// # Errors
    /// [`Error::LossScale`] if a smaller scale would not help.
    pub(super) fn overflowed(&mut self, what: &str) -> Result<(), Error> {
        self.state.overflowed(what)
    }
}

impl State {
    /// Updates the state after a step; `not_finite` names a non-finite value in it.
    fn update(&mut self, not_finite: Option<&str>, growth_interval: u64) -> Result<(), Error> {
        if let Some(what) = not_finite {
            return self.overflowed(what);
        }
        self.succeeded(growth_interval);
        Ok(())
    }

    pub(super) fn succeeded(&mut self, growth_interval: u64) {
        self.good_steps += 1;
        if self.good_steps >= growth_interval {
            self.good_steps = 0;
            self.scale = (self.scale * 2.0).min(LARGEST);
        }
    }

    fn overflowed(&mut self, what: &str) -> Result<(), Error> {
        self.good_steps = 0;
        if self.scale <= SMALLEST {
            return Err(Error::LossScale {
                scale: self.scale,
                what: what.to_owned(),
            });
        }
        self.scale /= 2.0;
        Ok(())
    }

    fn checked(self) -> Result<Self, String> {
        let scale = self.scale;
        let within = (SMALLEST..=LARGEST).contains(&scale);
        // A power of two has a zero mantissa.
        if within && scale.to_bits().trailing_zeros() >= f64::MANTISSA_DIGITS - 1 {
            return Ok(self);
        }
        Err(format!(
            "a loss scale is a power of two from 2^-14 to 2^64 (such as 65536), not {scale}"
        ))
    }
}

impl Pipeline {
    /// Returns the factor of the next step's loss gradient; `None` in other precisions than
    /// [`Precision::Fp16`](crate::Precision::Fp16). Waits for the steps still running on devices.
    pub fn loss_scale(&self) -> Option<f64> {
        self.scaler.as_ref().map(Scaler::scale)
    }

    /// Returns the state that [`Pipeline::restore_loss_scale`] needs to continue with the same
    /// scales; `None` without a loss scale.
    pub fn loss_scale_state(&self) -> Option<Value> {
        let scaler = self.scaler.as_ref()?;
        serde_json::to_value(scaler.last_state()).ok()
    }

    /// Keeps the loss scale on the device that computes the losses, if all devices are
    /// asynchronous. With replicas several devices compute losses, so the host waits.
    pub(super) fn scale_by_device(&mut self) -> Result<(), Error> {
        let on_one = self.engine.all_async() && self.engine.replicas() == 1;
        let Some(scaler) = self.scaler.as_mut().filter(|_| on_one) else {
            return Ok(());
        };
        let device = self.devices.last().copied().unwrap_or(Device::Cpu);
        let scale = scaler.move_to_device(device)?;
        let scale = Mutex::new(scale);
        self.engine
            .on_each(move |_, stage| Ok(stage.set_loss_scale(&scale.lock())?))?;
        Ok(())
    }

    /// Continues with the scale of an earlier run.
    ///
    /// # Errors
    /// [`Error::Settings`] if the precision has no loss scale, or `state` is not valid; then
    /// nothing changes.
    pub fn restore_loss_scale(&mut self, state: &Value) -> Result<(), Error> {
        let Some(scaler) = &mut self.scaler else {
            let why = format!(
                "a loss scale is to be restored, but the precision is {}, which has none",
                self.precision
            );
            return Err(SettingsError::invalid(Setting::LossScale, why).into());
        };
        let read: Result<State, _> = serde_json::from_value(state.clone());
        let read = read.map_err(|error| error.to_string());
        let state = read
            .and_then(State::checked)
            .map_err(|why| format!("the state of a loss scale: {why}"))
            .map_err(|why| SettingsError::invalid(Setting::LossScale, why))?;
        scaler.state = state;
        scaler.pending.clear();
        if scaler.on_device.is_some() {
            self.scale_by_device()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaler(initial: f64, growth_interval: u64) -> Scaler {
        Scaler::new(LossScale {
            initial,
            growth_interval,
        })
        .unwrap()
    }

    #[test]
    fn good_steps_in_a_row_double_it_and_an_overflow_halves_it() {
        let mut scaler = scaler(1024.0, 3);
        let mut scales = Vec::new();
        for good in [true, true, false, true, true, true, true, true, false, true] {
            if good {
                scaler.succeeded();
            } else {
                scaler.overflowed("x").unwrap();
            }
            scales.push(scaler.scale());
        }
        let expected = [1024, 1024, 512, 512, 512, 1024, 1024, 1024, 512, 512];
        assert_eq!(scales, expected.map(f64::from));
    }

    #[test]
    fn it_grows_to_an_end_and_falls_to_an_error() {
        let mut up = scaler(LARGEST / 2.0, 1);
        up.succeeded();
        up.succeeded();
        assert_eq!(up.scale(), LARGEST);
        let mut down = scaler(1.0, 1);
        let falls = (0..).take_while(|_| down.overflowed("the loss is NaN").is_ok());
        assert_eq!(falls.count(), 14);
        let message = down.overflowed("the loss is NaN").unwrap_err().to_string();
        assert!(message.contains("the loss is NaN"), "{message}");
        assert_eq!(down.scale(), SMALLEST);
    }

    #[test]
    fn scales_that_are_no_powers_of_two_are_refused() {
        for initial in [0.0, -2.0, 3.0, 1e5, f64::NAN, f64::INFINITY, 1e-6, 1e30] {
            let settings = LossScale {
                initial,
                ..LossScale::default()
            };
            let message = Scaler::new(settings).unwrap_err().to_string();
            assert!(message.contains("a power of two from 2^-14"), "{message}");
        }
    }
}
