//! A buffer that counts training steps.

use std::cell::Cell;
use std::rc::Rc;

use gpipe_partitioner::MicroId;
use tch::Tensor;

use gpipe_torch::{Context, GatheredParts, StepState, Values};

/// `num_batches_tracked` and similar buffers: grows once per training step, however many micro-batches
/// the step has, as if the mini-batch were computed at once.
#[derive(Debug)]
pub(super) struct StepCounter {
    buffer: Tensor,
    by: i64,
    name: String,
    ran: Cell<bool>,
}

impl StepCounter {
    pub(super) fn new(buffer: Tensor, by: i64, name: String) -> Self {
        Self {
            buffer,
            by,
            name,
            ran: Cell::new(false),
        }
    }

    /// Counts a pass.
    pub(super) fn count(self: &Rc<Self>, ctx: &Context) {
        if ctx.train() && !ctx.recomputing() {
            ctx.gathers(self);
            self.ran.set(true);
        }
    }

    /// Returns the buffer as at the step's beginning.
    pub(super) fn counted(&self) -> Tensor {
        self.buffer.shallow_clone()
    }
}

impl StepState for StepCounter {
    fn commit(&self) -> anyhow::Result<()> {
        if self.ran.take() {
            let _no_grad = tch::no_grad_guard();
            let _ = self.buffer.shallow_clone().f_add_scalar_(self.by)?;
        }
        Ok(())
    }

    fn discard(&self) {
        self.ran.set(false);
    }

    fn parts(&self) -> anyhow::Result<Option<GatheredParts>> {
        Ok(Some(GatheredParts {
            name: self.name.clone(),
            parts: Vec::new(),
        }))
    }

    fn merge(&self, _parts: Vec<(MicroId, Values)>) -> anyhow::Result<()> {
        self.ran.set(true);
        Ok(())
    }
}
