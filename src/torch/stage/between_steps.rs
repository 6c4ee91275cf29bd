//! Operations on a stage between steps: updates, checkpoints, inspection, steps in a row.

use std::sync::{Arc, Weak};

use anyhow::bail;
use parking_lot::Mutex;
use tch::Tensor;

use super::accumulator::Accumulator;
use super::exchange::Sums;
use super::in_a_row::{InRow, Row};
use super::outer::Outer;
use super::portable::{self, Portable};
use super::torch_stage::TorchStage;
use crate::copies;
use crate::error::TorchError;
use crate::optim::{Groups, OptimizerState};
use crate::out_of_memory::OutOfMemory;
use gpipe_engine::Stage;

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

    // Steps in a row.

    /// Why the stage cannot go on with a step while others are at the one before, if so.
    pub(crate) fn needs_barrier(&mut self, optimizer: u64) -> anyhow::Result<Option<&'static str>> {
        let own = self.committed()?;
        if own.has_gradients() {
            return Ok(Some("gradients are left from earlier steps"));
        }
        if self
            .update_parts()
            .1
            .get(optimizer)
            .is_some_and(OptimizerState::is_offloaded)
        {
            return Ok(Some("optimizer states are offloaded"));
        }
        Ok(match self.passes().compute().segments().give_out_own() {
            None => Some("it is the first step, which shows what layers give out"),
            Some(true) => Some("a layer gives out a parameter or buffer of its stage"),
            Some(false) => None,
        })
    }

    /// Saves the stage's state. *Returns* its bytes.
    pub(crate) fn enter_row(&mut self, row: &Arc<Row>) -> anyhow::Result<u64> {
        self.passes_mut().commit_step()?;
        let id = row.optimizer.0;
        let (passes, optimizers) = self.update_parts();
        let kept = InRow {
            row: Arc::clone(row),
            parameters: copied(passes.accumulator().parameters())?,
            buffers: copied(passes.compute().buffers().named())?,
            optimizer: optimizers.get(id).map(OptimizerState::copied).transpose()?,
        };
        let bytes = kept.bytes();
        self.set_row(Some(Box::new(kept)));
        Ok(bytes)
    }

    /// The steps count: what was kept is not needed any more.
    pub(crate) fn leave_row(&mut self) {
        self.set_row(None);
    }

    /// Undoes the steps: restores the stage's state from before them. Does nothing without a run.
    pub(crate) fn undo_row(&mut self) -> anyhow::Result<()> {
        let Some(kept) = self.take_row() else {
            return Ok(());
        };
        // Ends the stage's current step.
        self.abort();
        let id = kept.row.optimizer.0;
        let (passes, optimizers) = self.update_parts();
        let done = put_back(passes.accumulator().parameters(), &kept.parameters)
            .and_then(|()| put_back(passes.compute().buffers().named(), &kept.buffers))
            .and_then(|()| passes.accumulator_mut().zero_grad());
        if let Err(error) = done {
            // Kept for another attempt.
            self.set_row(Some(kept));
            return Err(error.into());
        }
        optimizers.put_back(id, kept.optimizer);
        Ok(())
    }

    /// The stage's gradients of a step are whole. See [`Stage::close_step`].
    pub(super) fn close_step_in_row(&mut self, step: usize) -> anyhow::Result<()> {
        let row = self.row().map(|own| Arc::clone(&own.row));
        let row = row.ok_or_else(|| anyhow::anyhow!("steps in a row that were not begun"))?;
        let Some(own) = row.steps.get(step) else {
            bail!("step {step} in a row, of {}", row.steps.len());
        };
        self.end()?;
        if row.skips
            && let Some((_, name)) = self.accumulator().first_non_finite()?
        {
            bail!("the gradient of `{name}` is not finite in step {step} in a row");
        }
        if let Some(factor) = own.factor {
            self.accumulator().scale(factor)?;
        }
        let committed = self.committed()?;
        let norms = match row.votes.max_norm {
            Some(_) => committed.norms()?,
            None => Vec::new(),
        };
        row.votes.tell(step, self.number(), norms)?;
        let (id, alive) = &row.optimizer;
        self.prepare_updates(*id, alive, &own.groups, false)?;
        self.optimize(*id, &own.groups)?;
        match row.steps.get(step + 1) {
            Some(next) => self.begin(&next.settings),
            None => Ok(()),
        }
    }
}

fn copied(all: &[(String, Tensor)]) -> Result<Vec<Tensor>, TorchError> {
    let copy = |(_, tensor): &(String, Tensor)| copies::plain(tensor);
    all.iter().map(copy).collect()
}

fn put_back(all: &[(String, Tensor)], kept: &[Tensor]) -> Result<(), TorchError> {
    let mut pairs = all.iter().zip(kept);
    pairs.try_for_each(|((_, tensor), kept)| copies::fill(tensor, kept))
}
