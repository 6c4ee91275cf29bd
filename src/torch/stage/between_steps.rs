//! What is done with a stage between steps: updates, checkpoints, looks at its tensors.

use std::sync::Weak;

use parking_lot::Mutex;
use tch::Tensor;

use super::accumulator::Accumulator;
use super::portable::{self, Portable};
use super::torch_stage::TorchStage;
use crate::torch::error::TorchError;
use crate::torch::optim::Groups;
use crate::torch::out_of_memory::OutOfMemory;

impl TorchStage {
    /// The gradients, after the last step has been committed.
    pub(crate) fn committed(&mut self) -> anyhow::Result<&mut Accumulator> {
        self.passes_mut().commit_step()?;
        Ok(self.passes_mut().accumulator_mut())
    }

    /// The same, but where only the device knows whether the last step counts, the gradients
    /// are as the step left them.
    pub(crate) fn committed_unless_deferred(&mut self) -> anyhow::Result<&mut Accumulator> {
        if !self.passes().accumulator().is_deferred() {
            self.passes_mut().commit_step()?;
        }
        Ok(self.passes_mut().accumulator_mut())
    }

    /// The gradients of the step that just ended, alone.
    pub(crate) fn accumulator(&mut self) -> &mut Accumulator {
        self.passes_mut().accumulator_mut()
    }

    /// Names and handles of the buffers, by layer and name.
    pub(crate) fn buffers(&mut self) -> anyhow::Result<&[(String, Tensor)]> {
        self.passes_mut().commit_step()?;
        Ok(self.passes().compute().buffers().named())
    }

    /// The norms of the step that just ended, with names, where its device alone can find
    /// out whether it counts; see [`Accumulator::defer`].
    pub(crate) fn deferrable_norms(&self) -> anyhow::Result<Option<(Vec<String>, Tensor)>> {
        let accumulator = self.passes().accumulator();
        let compute = self.passes().compute();
        let gathered = compute.layers().have_gathered() || compute.buffers().have_pending();
        if accumulator.has_previous() || gathered {
            return Ok(None);
        }
        Ok(accumulator.named_norms_on_device()?)
    }

    /// What the next losses are multiplied with, on whatever device.
    #[doc(alias = "GradScaler")]
    pub(crate) fn set_loss_scale(&mut self, scale: &Tensor) -> Result<(), TorchError> {
        if self.has_loss() {
            // It is on the stage's own device.
            let _shared = self.streams().uses("a loss scale", scale)?;
        }
        if let Some(loss) = self.passes_mut().loss() {
            loss.set_scale(scale);
        }
        Ok(())
    }

    /// Gets ready for [`TorchStage::optimize`]; parameters and gradients stay as they are,
    /// also if it fails.
    ///
    /// `alive` tells whether the optimizer still exists, so that the states of others can be
    /// dropped.
    pub(crate) fn prepare_updates(
        &mut self,
        id: u64,
        alive: &Weak<()>,
        groups: &Groups,
    ) -> anyhow::Result<()> {
        self.acts(c"before the update");
        if groups.dampen() {
            self.passes_mut().commit_step()?;
        }
        self.committed_unless_deferred()?;
        let _counted = self.count_memory();
        let (passes, optimizers) = self.update_parts();
        let parameters = passes.accumulator().parameters();
        let prepared = optimizers.prepare((id, alive), groups, parameters);
        let device = passes.compute().layers().device();
        prepared.map_err(|error| OutOfMemory::explain(device, error.into()))
    }

    /// There will be no update: some stage cannot.
    pub(crate) fn abandon_updates(&mut self, id: u64) {
        self.update_parts().1.abandon(id);
    }

    /// Applies and clears the accumulated gradients, for which it is prepared. After an error the
    /// next call goes on where this one has stopped; without anything to do it does nothing.
    pub(crate) fn optimize(&mut self, id: u64, groups: &Groups) -> anyhow::Result<()> {
        self.acts(c"the update");
        let found_inf = self.committed_unless_deferred()?.found_inf();
        let _counted = self.count_memory();
        let (passes, optimizers) = self.update_parts();
        let parameters = passes.accumulator().parameters();
        let applied = optimizers.apply(id, groups, parameters, found_inf.as_ref());
        let done = applied.map_err(anyhow::Error::from);
        let done = done.and_then(|()| passes.commit_used_step());
        let device = passes.compute().layers().device();
        done.map_err(|error| OutOfMemory::explain(device, error))
    }

    /// Copies, in the host's memory, of everything that training needs to resume.
    pub(crate) fn portable(&mut self, optimizer: u64) -> anyhow::Result<Vec<Portable>> {
        self.passes_mut().commit_step()?;
        self.streams().wait_offloaded()?;
        let (passes, optimizers) = self.update_parts();
        let buffers = passes.compute().buffers().named();
        let parameters = passes.accumulator().parameters();
        portable::snapshot(parameters, buffers, optimizers.get(optimizer))
    }

    /// Drops gradients, and an optimizer's state here.
    pub(crate) fn forget(&mut self, optimizer: u64) -> anyhow::Result<()> {
        self.passes_mut().commit_step()?;
        self.update_parts().1.forget(optimizer);
        Ok(self.accumulator().zero_grad()?)
    }

    /// Takes what belongs to this stage out of `all` and resumes from it. Types and shapes
    /// have been checked. `alive` tells whether the optimizer still exists, `offload` whether
    /// it keeps its state on the host.
    pub(crate) fn adopt_portable(
        &mut self,
        optimizer: u64,
        (alive, offload): (&Weak<()>, bool),
        all: &Mutex<Vec<Portable>>,
    ) -> anyhow::Result<()> {
        let (passes, optimizers) = self.update_parts();
        let buffers = passes.compute().buffers().named();
        let parameters = passes.accumulator().parameters();
        let parts = portable::restore(parameters, buffers, all)?;
        optimizers.remember((optimizer, alive), offload, parameters, parts)?;
        Ok(self.streams().release_offloaded()?)
    }

    /// Draws random numbers as a model does that was built with this seed.
    pub(crate) fn reseed(&mut self, seed: u64) {
        self.passes_mut().compute_mut().layers_mut().reseed(seed);
        if let Some(loss) = self.passes_mut().loss() {
            loss.reseed(seed);
        }
    }
}
