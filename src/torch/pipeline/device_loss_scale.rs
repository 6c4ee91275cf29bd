//! A loss scale stored on a device, for steps whose finite check only devices know.
//!
//! The host does the same arithmetic (`src/torch/pipeline/loss_scale.rs`) when it reads the check.

use tch::{Device, Kind, Tensor};

use crate::{TorchError, operators};

/// Below this, no half-precision gradient overflows because of the scale.
pub(super) const SMALLEST: f64 = 1.0 / 16384.0;
/// Above this nothing is gained: single precision ends at 2^128.
pub(super) const LARGEST: f64 = 18_446_744_073_709_551_616.0;

/// A loss scale on a device.
#[derive(Debug)]
pub(super) struct DeviceLossScale {
    /// A scalar `f32`.
    scale: Tensor,
    /// Consecutive good steps since the last growth, an `i32`.
    good_steps: Tensor,
    growth_interval: i64,
}

impl DeviceLossScale {
    pub(super) fn new(
        device: Device,
        scale: f64,
        good_steps: u64,
        growth_interval: u64,
    ) -> Result<Self, TorchError> {
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        // The scale grows only when the count reaches the interval exactly.
        let good_steps = whole(good_steps.min(growth_interval - 1));
        Ok(Self {
            scale: Tensor::f_full([], scale, (Kind::Float, device))?,
            good_steps: Tensor::f_full([], good_steps, (Kind::Int, device))?,
            growth_interval: whole(growth_interval),
        })
    }

    /// Returns the factor of the next step's loss.
    pub(super) fn tensor(&self) -> Tensor {
        self.scale.shallow_clone()
    }

    /// Updates the scale after a step (`torch._amp_update_scale_`).
    pub(super) fn update(&mut self, found_inf: &Tensor) -> Result<(), TorchError> {
        let _ = operators(|| -> Result<_, tch::TchError> {
            let found_inf = found_inf.f_to_device(self.scale.device())?;
            let (good, interval) = (&self.good_steps, self.growth_interval);
            let _ =
                (self.scale).f_internal_amp_update_scale_(good, &found_inf, 2.0, 0.5, interval)?;
            self.scale.f_clamp_(SMALLEST, LARGEST)
        })?;
        Ok(())
    }
}
