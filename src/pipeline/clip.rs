//! Gradients of the whole model, limited together.

use super::Pipeline;
use crate::error::Error;
use crate::torch::{clip_factor, total_norm};

impl Pipeline {
    /// Limits the 2-norm of all gradients together to `max_norm`, as PyTorch's
    /// `clip_grad_norm_` does: where it is larger, every gradient is multiplied with
    /// `max_norm / (norm + 1e-6)`. Returns the norm before. For between
    /// [`Pipeline::train_step`] and the optimizer's step.
    ///
    /// A norm that is NaN or infinite is returned with the gradients left as they
    /// are. With a `max_norm` of infinity nothing is changed: it only measures.
    ///
    /// *Determinism*: the same bits for every cut and schedule.
    ///
    /// ```
    /// # use gpipe::{Pipeline, Sequential, tch::{Device, Kind, Tensor, nn}};
    /// # let model = Sequential::new().layer("head", |p| nn::linear(p, 8, 2, Default::default()));
    /// # let mut pipe = Pipeline::new(model, &[Device::Cpu], 2)?;
    /// # let x = Tensor::ones([4, 8], (Kind::Float, Device::Cpu));
    /// # let y = Tensor::zeros([4, 2], (Kind::Float, Device::Cpu));
    /// # let loss_fn = |out: &Tensor, y: &Tensor| out.mse_loss(y, gpipe::tch::Reduction::Sum);
    /// pipe.train_step(&x, &y, loss_fn)?;
    /// let before = pipe.clip_grad_norm(0.1)?;
    /// let after = pipe.clip_grad_norm(f64::INFINITY)?;
    /// assert!(after <= before && after < 0.1001);
    /// # Ok::<(), gpipe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Settings`] for a negative `max_norm` or NaN. A sparse gradient.
    pub fn clip_grad_norm(&mut self, max_norm: f64) -> Result<f64, Error> {
        if max_norm.is_nan() || max_norm < 0.0 {
            return Err(Error::Settings(format!(
                "gradients cannot be clipped to a norm of {max_norm}: it must be 0 or more"
            )));
        }
        let norms = self.engine.on_each(|_, stage| stage.gradient_norms())?;
        let total = total_norm(&norms.concat());
        let factor = clip_factor(max_norm, total);
        if total.is_finite() && factor < 1.0 {
            self.engine
                .on_each(move |_, stage| stage.scale_gradients(factor))?;
        }
        Ok(total)
    }
}
