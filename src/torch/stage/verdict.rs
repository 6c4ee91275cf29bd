//! A step of which only the stage's device knows whether it counts (see
//! `pipeline/verdict.rs`).

use tch::{Kind, Tensor};

use super::TorchStage;
use crate::torch::error::TorchError;
use crate::torch::ffi;
use crate::torch::gradients::norms_there;

impl TorchStage {
    /// The names of all gradients of the step that just ended, and their norms as a tensor
    /// on the stage's device. None where the host has to look at them itself.
    pub(crate) fn all_norms_there(&self) -> anyhow::Result<Option<(Vec<String>, Tensor)>> {
        let adds = self.held.iter().any(Option::is_some);
        if adds || self.layers.iter().any(|layer| layer.layer.gathers()) {
            return Ok(None);
        }
        let places = self.parameters.iter().chain(&self.replicas);
        let (names, grads): (Vec<String>, Vec<Tensor>) = places
            .map(|(name, parameter)| (name.clone(), parameter.grad()))
            .filter(|(_, grad)| grad.defined())
            .unzip();
        Ok(norms_there(&grads, self.device)?.map(|norms| (names, norms)))
    }

    /// The step that just ended does not count where `found` is 1, on whatever device; its
    /// gradients are yet to be multiplied with the factor.
    pub(crate) fn judge(&mut self, found: &Tensor, factor: Option<&Tensor>) -> anyhow::Result<()> {
        self.streams.uses("a verdict", found)?;
        if let Some(factor) = factor {
            self.streams.uses("a factor of gradients", factor)?;
            let factor = factor.f_to_device(self.device)?;
            ffi::scale_by(&self.step_gradients(), &factor)?;
        }
        self.verdict = Some(found.f_to_device(self.device)?);
        Ok(())
    }

    /// What the next losses are multiplied with, on whatever device.
    pub(crate) fn set_scale(&mut self, scale: &Tensor) -> Result<(), TorchError> {
        if self.last {
            self.streams.uses("a loss scale", scale)?;
            self.scale = Some(scale.shallow_clone());
        }
        Ok(())
    }

    /// Waits for the verdict on the last step, where there is one, and undoes it if need be.
    pub(super) fn hear_verdict(&mut self) -> Result<(), TorchError> {
        let Some(found) = self.verdict.take() else {
            return Ok(());
        };
        if found.f_double_value(&[])? != 0.0 {
            self.undo_step();
        }
        Ok(())
    }

    /// The verdict on the last step, for who can do with it alone; without one all is done
    /// that comes behind a good step.
    pub(super) fn settle_unless_judged(&mut self) -> anyhow::Result<Option<Tensor>> {
        let found = self.verdict.as_ref().map(Tensor::shallow_clone);
        if found.is_none() {
            self.settle()?;
        }
        Ok(found)
    }

    /// The gradients are used up: what is left to do is to put back buffers if the step does
    /// not count.
    pub(super) fn execute_verdict(&mut self) -> anyhow::Result<()> {
        let Some(found) = self.verdict.take() else {
            return Ok(());
        };
        let saved = std::mem::take(&mut self.saved_buffers);
        tch::no_grad(|| -> Result<(), TorchError> {
            let bad = found.f_to_kind(Kind::Bool)?;
            for ((_, buffer), saved) in self.buffers.iter().zip(&saved) {
                let right = saved.f_where_self(&bad, buffer)?;
                buffer.shallow_clone().f_copy_(&right)?;
            }
            Ok(())
        })?;
        self.settle()
    }
}
