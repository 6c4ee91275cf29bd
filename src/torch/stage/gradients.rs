//! A stage's parameters between steps: what their gradients add up to, and updates.

use std::sync::Weak;

use tch::Tensor;

use super::TorchStage;
use super::ledger::Ledger;
use crate::torch::error::TorchError;
use crate::torch::ffi;
use crate::torch::gradients::{first_non_finite, norms, norms_there};
use crate::torch::optim::{Groups, OptimizerState};
use crate::torch::out_of_memory::OutOfMemory;

impl TorchStage {
    /// Names and handles of the parameters, by layer and name.
    pub(crate) fn parameters(&mut self) -> anyhow::Result<&[(String, Tensor)]> {
        self.settle()?;
        Ok(&self.parameters)
    }

    /// Names and handles of the buffers, by layer and name.
    pub(crate) fn buffers(&mut self) -> anyhow::Result<&[(String, Tensor)]> {
        self.settle()?;
        Ok(&self.buffers)
    }

    /// Gets ready for [`TorchStage::optimize`]; parameters and gradients stay as they are,
    /// also if it fails.
    ///
    /// `alive` is whether the optimizer still is, for when another one is here.
    pub(crate) fn prepare_updates(
        &mut self,
        id: u64,
        alive: &Weak<()>,
        groups: &Groups,
    ) -> anyhow::Result<()> {
        if groups.dampen() {
            self.settle()?;
        }
        self.settle_unless_judged()?;
        self.optimizers
            .retain(|_, (alive, _)| alive.strong_count() > 0);
        let _charged = self.ledger.as_ref().and_then(Ledger::charge);
        let new = || (Weak::clone(alive), OptimizerState::default());
        let (_, state) = self.optimizers.entry(id).or_insert_with(new);
        state
            .prepare(groups, &self.parameters, &self.streams)
            .map_err(|error| OutOfMemory::explain(self.device, error.into()))
    }

    /// There will be no update: some stage cannot.
    pub(crate) fn abandon_updates(&mut self, id: u64) {
        if let Some((_, state)) = self.optimizers.get_mut(&id) {
            state.abandon();
        }
    }

    /// Applies and clears the accumulated gradients, for which it is prepared.
    pub(crate) fn optimize(&mut self, id: u64, groups: &Groups) -> anyhow::Result<()> {
        let found = self.settle_unless_judged()?;
        let _charged = self.ledger.as_ref().and_then(Ledger::charge);
        if let Some((_, state)) = self.optimizers.get_mut(&id) {
            state.apply(groups, &self.parameters, &self.streams, found.as_ref())?;
        }
        self.execute_verdict()
    }

    /// Clears the accumulated gradients.
    pub(crate) fn zero_grad(&mut self) -> Result<(), TorchError> {
        self.held.clear();
        self.parameters
            .iter()
            .try_for_each(|(_, parameter)| ffi::set_grad(parameter, None))
    }

    /// Scales the gradients of the step that just ended well, not earlier ones.
    pub(crate) fn scale_step(&mut self, factor: f64) -> Result<(), TorchError> {
        ffi::scale(&self.step_gradients(), factor)
    }

    /// The norm of each gradient that has accumulated, in the order of the parameters.
    pub(crate) fn gradient_norms(&mut self) -> anyhow::Result<Vec<f64>> {
        self.settle()?;
        Ok(norms(&self.step_gradients())?)
    }

    /// The same as a tensor on the stage's device, where that can be: nobody waits for it.
    pub(crate) fn gradient_norms_there(&mut self) -> anyhow::Result<Option<Tensor>> {
        self.settle_unless_judged()?;
        Ok(norms_there(&self.step_gradients(), self.device)?)
    }

    /// Scales all gradients that have accumulated by a number on some device.
    pub(crate) fn scale_gradients_by(&mut self, factor: &Tensor) -> anyhow::Result<()> {
        self.settle_unless_judged()?;
        self.streams.uses("a factor of gradients", factor)?;
        let factor = factor.f_to_device(self.device)?;
        Ok(ffi::scale_by(&self.step_gradients(), &factor)?)
    }

    /// Scales all gradients that have accumulated.
    pub(crate) fn scale_gradients(&mut self, factor: f64) -> anyhow::Result<()> {
        self.settle()?;
        Ok(self.scale_step(factor)?)
    }

    /// The name of a parameter whose gradient of the last step is not finite.
    pub(crate) fn non_finite_gradient(&self) -> anyhow::Result<Option<String>> {
        let places = self.parameters.iter().chain(&self.replicas);
        let (names, grads): (Vec<_>, Vec<_>) = places
            .map(|(name, parameter)| (name, parameter.grad()))
            .filter(|(_, grad)| grad.defined())
            .unzip();
        let first = first_non_finite(&grads)?;
        Ok(first.map(|place| names[place].clone()))
    }

    /// Whether gradients arrive at the parameters that `chosen` names.
    pub(crate) fn set_trainable(
        &mut self,
        chosen: &dyn Fn(&str) -> bool,
        trainable: bool,
    ) -> anyhow::Result<()> {
        self.settle()?;
        for (name, parameter) in &self.parameters {
            if chosen(name) {
                let _ = parameter.f_set_requires_grad(trainable)?;
                if !trainable {
                    ffi::set_grad(parameter, None)?;
                }
            }
        }
        Ok(())
    }

    /// A parameter, also one that stands for another.
    pub(crate) fn place(&self, name: &str) -> Option<Tensor> {
        let mut all = self.parameters.iter().chain(&self.replicas);
        let found = all.find(|(own, _)| own == name);
        found.map(|(_, tensor)| tensor.shallow_clone())
    }

    /// Makes the parameter `name` a place of use of `owner`: the same memory where
    /// both are on one device, else a copy that [`TorchStage::refresh`] renews.
    pub(crate) fn adopt(&mut self, name: &str, owner: &Tensor) -> anyhow::Result<()> {
        if let Some(index) = self.parameters.iter().position(|(own, _)| own == name) {
            let (name, mut tensor) = self.parameters.remove(index);
            if tensor.device() == owner.device() {
                tensor.f_set_data(&owner.f_detach()?)?;
            }
            self.replicas.push((name, tensor));
        }
        self.refresh(name, owner)
    }

    /// Whether gradients arrive at a place of use.
    pub(crate) fn follow(&self, name: &str, trainable: bool) -> anyhow::Result<()> {
        if let Some((_, replica)) = self.replicas.iter().find(|(own, _)| own == name) {
            let _ = replica.f_set_requires_grad(trainable)?;
        }
        Ok(())
    }

    /// Copies the owner's values to a place of use on another device.
    pub(crate) fn refresh(&mut self, name: &str, owner: &Tensor) -> anyhow::Result<()> {
        let replica = self.replicas.iter().find(|(own, _)| own == name);
        if let Some((_, replica)) = replica
            && replica.device() != owner.device()
        {
            tch::no_grad(|| replica.shallow_clone().f_copy_(owner))?;
        }
        Ok(())
    }

    /// Takes the last step's gradient of a place of use.
    pub(crate) fn take_step_gradient(&self, name: &str) -> anyhow::Result<Option<Tensor>> {
        match self.place(name) {
            Some(parameter) => Ok(ffi::take_grad(&parameter)?),
            None => Ok(None),
        }
    }

    /// Sets the last step's gradient of an owner, from whatever device.
    pub(crate) fn set_step_gradient(&self, name: &str, grad: &Tensor) -> anyhow::Result<()> {
        let Some(parameter) = self.place(name) else {
            return Ok(());
        };
        self.streams.uses("a sum of tied gradients", grad)?;
        let grad = grad.f_to_device(self.device)?;
        Ok(ffi::set_grad(&parameter, Some(&grad))?)
    }

    /// Runs a pass that adds micro-batch `micro`'s gradients to the parameters. Under
    /// a schedule that does not go through the micro-batches in order, the gradients
    /// of one that comes early wait until it is their turn: the sums have the same
    /// bits under every schedule.
    pub(super) fn in_turn(
        &mut self,
        micro: usize,
        pass: impl FnOnce(&mut Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if micro == self.next {
            pass(self)?;
            self.next += 1;
            while let Some(waiting) = self.early.remove(&self.next) {
                self.add_gradients(waiting)?;
                self.next += 1;
            }
            return Ok(());
        }
        let sum = self.take_gradients()?;
        pass(self)?;
        let own = self.take_gradients()?;
        self.early.insert(micro, own);
        self.add_gradients(sum)
    }

    pub(super) fn take_gradients(&self) -> Result<Vec<Option<Tensor>>, TorchError> {
        let places = self.parameters.iter().chain(&self.replicas);
        places
            .map(|(_, parameter)| ffi::take_grad(parameter))
            .collect()
    }

    pub(super) fn add_gradients(&self, grads: Vec<Option<Tensor>>) -> anyhow::Result<()> {
        let places = self.parameters.iter().chain(&self.replicas);
        for ((_, parameter), grad) in places.zip(grads) {
            let Some(grad) = grad else { continue };
            let sum = parameter.grad();
            if sum.defined() {
                ffi::add(&[sum], &[grad])?;
            } else {
                ffi::set_grad(parameter, Some(&grad))?;
            }
        }
        Ok(())
    }

    pub(super) fn step_gradients(&self) -> Vec<Tensor> {
        let grads = self.parameters.iter().map(|(_, p)| p.grad());
        grads.filter(Tensor::defined).collect()
    }

    /// Sets aside what earlier steps left in the parameters, so that this step's
    /// gradients stand alone.
    pub(super) fn set_aside(&mut self) -> Result<(), TorchError> {
        self.next = 0;
        self.early.clear();
        self.held = self
            .parameters
            .iter()
            .map(|(_, p)| ffi::take_grad(p))
            .collect::<Result<_, _>>()?;
        self.replicas
            .iter()
            .try_for_each(|(_, replica)| ffi::set_grad(replica, None))
    }

    /// Puts the earlier gradients back in place of this step's.
    pub(super) fn restore_gradients(&mut self) {
        self.early.clear();
        // The calls only move handles; there is nobody left to tell if they failed.
        for ((_, parameter), held) in self.parameters.iter().zip(std::mem::take(&mut self.held)) {
            let _ = ffi::set_grad(parameter, held.as_ref());
        }
        for (_, replica) in &self.replicas {
            let _ = ffi::set_grad(replica, None);
        }
    }

    /// What can only be done once it is certain that the last step ended well on
    /// every stage: its gradients join those of earlier steps, and layers commit
    /// what they gathered.
    pub(super) fn settle(&mut self) -> anyhow::Result<()> {
        self.hear_verdict()?;
        for ((_, parameter), held) in self.parameters.iter().zip(std::mem::take(&mut self.held)) {
            let Some(earlier) = held else { continue };
            if let Some(new) = ffi::take_grad(parameter)? {
                ffi::add(std::slice::from_ref(&earlier), &[new])?;
            }
            ffi::set_grad(parameter, Some(&earlier))?;
        }
        if std::mem::take(&mut self.uncommitted) {
            for layer in &self.layers {
                crate::torch::caught(|| layer.layer.commit())
                    .map_err(|error| error.context(format!("layer `{}`", layer.name)))?;
            }
        }
        Ok(())
    }
}

/// Whether a tensor holds neither NaN nor infinity; one that can hold none does not.
pub(super) fn finite(tensor: &Tensor) -> anyhow::Result<bool> {
    if !tensor.is_floating_point() || tensor.numel() == 0 {
        return Ok(true);
    }
    let all = tch::no_grad(|| tensor.f_isfinite()?.f_all())?;
    Ok(all.f_int64_value(&[])? != 0)
}
