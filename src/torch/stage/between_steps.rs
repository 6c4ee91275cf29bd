//! Operations on a stage between steps: updates, checkpoints, inspection.

use std::sync::Weak;

use parking_lot::Mutex;
use tch::Tensor;

use super::accumulator::Accumulator;
use super::exchange::Sums;
use super::outer::Outer;
use super::portable::{self, Portable};
use super::torch_stage::TorchStage;
use crate::error::TorchError;
use crate::optim::Groups;
use crate::out_of_memory::OutOfMemory;

impl TorchStage {
    /// The gradients, after the last step has been committed.
    pub(crate) fn committed(&mut self) -> anyhow::Result<&mut Accumulator> {
        self.passes_mut().commit_step()?;
        Ok(self.passes_mut().accumulator_mut())
    }

    /// Does the same, but if only the device knows whether the last step counts, leaves the
    /// gradients as they are.
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
    #[allow(
        clippy::type_complexity,
        reason = "what it is of is said by the accumulator"
    )]
    pub(crate) fn deferrable_norms(
        &self,
    ) -> anyhow::Result<Option<(Vec<(usize, String)>, Tensor)>> {
        let accumulator = self.passes().accumulator();
        let compute = self.passes().compute();
        let gathered = compute.layers().have_gathered() || compute.buffers().have_pending();
        if accumulator.has_previous() || gathered {
            return Ok(None);
        }
        Ok(accumulator.named_norms_on_device()?)
    }

    /// Sets the scale of later losses, from any device.
    #[doc(alias = "GradScaler")]
    pub(crate) fn set_loss_scale(&mut self, scale: &Tensor) -> Result<(), TorchError> {
        if self.has_loss() {
            // The scale is on the stage's own device.
            let _shared = self.streams().uses(scale)?;
        }
        if let Some(loss) = self.passes_mut().loss() {
            loss.set_scale(scale);
        }
        Ok(())
    }

    /// Prepares for [`TorchStage::optimize`]; does not change parameters and gradients, even if it
    /// fails.
    ///
    /// `alive` tells whether the optimizer still exists, so that the states of others can be
    /// dropped; `begins_round` whether the update is the first one of a round of local steps.
    pub(crate) fn prepare_updates(
        &mut self,
        id: u64,
        alive: &Weak<()>,
        groups: &Groups,
        begins_round: bool,
    ) -> anyhow::Result<()> {
        self.acts(c"before the update");
        if groups.dampen() {
            self.passes_mut().commit_step()?;
        }
        self.committed_unless_deferred()?;
        let _counted = self.count_memory();
        let updating = self.passes().accumulator().to_update();
        self.set_updating(updating);
        if begins_round {
            self.begin_round()?;
        }
        let (passes, optimizers) = self.update_parts();
        let parameters = passes.accumulator().parameters();
        let prepared = optimizers.prepare((id, alive), groups, parameters);
        let device = passes.compute().layers().device();
        prepared.map_err(|error| OutOfMemory::explain(device, error.into()))
    }

    /// Abandons the prepared updates, as some stage cannot update.
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

    /// Copies to host memory everything that training needs to resume: this copy's own state of the
    /// stage, and on the first copy the shared state.
    ///
    /// `apart` tells whether all copies have weights of their own.
    pub(crate) fn portable(
        &mut self,
        optimizer: u64,
        apart: bool,
    ) -> anyhow::Result<Vec<Portable>> {
        self.passes_mut().commit_step()?;
        self.streams().wait_offloaded()?;
        let replica = self.replica();
        let whose = (apart || replica == 0, &*self.owned());
        let (passes, optimizers) = self.update_parts();
        let buffers = passes.compute().buffers().named();
        let parameters = passes.accumulator().parameters();
        let state = optimizers.get(optimizer);
        let all = portable::snapshot(parameters, buffers, state, whose)?;
        let mut all = match self.copies().sums {
            Sums::Alone if replica > 0 => portable::of_replica(replica, all),
            _ => all,
        };
        let parameters = self.passes().accumulator().parameters();
        all.extend(self.outer().portable(parameters)?);
        Ok(all)
    }

    /// Drops gradients, and an optimizer's state here.
    pub(crate) fn forget(&mut self, optimizer: u64) -> anyhow::Result<()> {
        self.passes_mut().commit_step()?;
        self.update_parts().1.forget(optimizer);
        *self.outer_mut() = Outer::default();
        Ok(self.accumulator().zero_grad()?)
    }

    /// Takes this stage's state out of `all` and resumes from it. Types and shapes have been
    /// checked. `alive` tells whether the optimizer still exists, `offload` whether it keeps its
    /// state on the host.
    pub(crate) fn adopt_portable(
        &mut self,
        optimizer: u64,
        (alive, offload): (&Weak<()>, bool),
        all: &Mutex<Vec<Portable>>,
    ) -> anyhow::Result<()> {
        let owned = self.owned();
        let (passes, optimizers) = self.update_parts();
        let buffers = passes.compute().buffers().named();
        let parameters = passes.accumulator().parameters();
        let (parts, outer) = portable::restore(parameters, buffers, &owned, all)?;
        optimizers.remember((optimizer, alive), offload, parameters, parts)?;
        self.remember_outer(outer)?;
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
