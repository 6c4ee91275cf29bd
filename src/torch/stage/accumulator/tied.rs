//! Parameters by name, and tied copies of other layers' parameters.

use tch::Tensor;

use super::Accumulator;
use crate::error::TorchError;
use crate::ffi;

impl Accumulator {
    /// A parameter, also one that is a tied copy.
    pub(crate) fn find(&self, name: &str) -> Option<Tensor> {
        let found = self.with_tied().find(|(own, _)| own == name);
        found.map(|(_, tensor)| tensor.shallow_clone())
    }

    /// Makes the parameter `name` a tied copy of `owner`: the same memory where both are on
    /// one device, else a copy that [`Accumulator::refresh_tied`] renews.
    pub(crate) fn tie(&mut self, name: &str, owner: &Tensor) -> anyhow::Result<()> {
        if let Some(index) = self.parameters.iter().position(|(own, _)| own == name) {
            let (name, mut tensor) = self.parameters.remove(index);
            if tensor.device() == owner.device() {
                tensor.f_set_data(&owner.f_detach()?)?;
            }
            self.tied.push((name, tensor));
        }
        self.refresh_tied(name, owner)
    }

    fn tied_copy(&self, name: &str) -> Option<&Tensor> {
        let copy = self.tied.iter().find(|(own, _)| own == name);
        copy.map(|(_, copy)| copy)
    }

    /// Copies the owner's values to a tied copy on another device, or in another process.
    pub(crate) fn refresh_tied(&self, name: &str, owner: &Tensor) -> anyhow::Result<()> {
        if let Some(copy) = self.tied_copy(name)
            && !shares_memory(copy, owner)
        {
            tch::no_grad(|| copy.shallow_clone().f_copy_(owner))?;
        }
        Ok(())
    }

    /// Sets whether a tied copy gets gradients.
    pub(crate) fn set_tied_trainable(&self, name: &str, trainable: bool) -> anyhow::Result<()> {
        if let Some(copy) = self.tied_copy(name) {
            let _ = copy.f_set_requires_grad(trainable)?;
        }
        Ok(())
    }

    /// Takes the last step's gradient of a parameter or tied copy.
    pub(crate) fn take_gradient(&self, name: &str) -> Result<Option<Tensor>, TorchError> {
        match self.find(name) {
            Some(parameter) => ffi::take_grad(&parameter),
            None => Ok(None),
        }
    }

    /// Sets the last step's gradient of an owner, from whatever device.
    pub(crate) fn set_gradient(&self, name: &str, grad: &Tensor) -> anyhow::Result<()> {
        let Some(parameter) = self.find(name) else {
            return Ok(());
        };
        let _shared = self.streams.uses(grad)?;
        let grad = grad.f_to_device(self.device)?;
        Ok(ffi::set_grad(&parameter, Some(&grad))?)
    }
}

fn shares_memory(one: &Tensor, other: &Tensor) -> bool {
    one.device() == other.device() && one.data_ptr() == other.data_ptr()
}
