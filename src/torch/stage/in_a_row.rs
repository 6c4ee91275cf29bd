//! Several steps in a row without a barrier between them, and the way back.
//!
//! Before the first of them a stage keeps copies of all that updates and forwards change: its
//! parameters, its buffers, and what the optimizer remembers of the parameters. When its gradients
//! of a step are whole it does what is done to it between steps with a barrier, in the same order:
//! it looks whether they are finite, takes them out of the loss scale, measures them, updates, and
//! begins the next step. What only all stages together know is in [`Votes`]. If one of the steps
//! does not count as it is, or a stage fails, the copies are put back.

use std::sync::{Arc, Weak};

use anyhow::bail;
use parking_lot::Mutex;
use tch::Tensor;

use super::torch_stage::TorchStage;
use crate::engine::Stage;
use crate::torch::copies;
use crate::torch::error::TorchError;
use crate::torch::gradients::{clip_factor, total_norm};
use crate::torch::optim::{Groups, OptimizerState};
use crate::torch::sequential::bytes;
use crate::torch::step::StepSettings;

/// What stages are told of steps in a row.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) steps: Vec<RowStep>,
    /// The optimizer's number, and whether it still exists.
    pub(crate) optimizer: (u64, Weak<()>),
    /// Whether a gradient that is not finite skips its step.
    pub(crate) skips: bool,
    pub(crate) votes: Votes,
}

/// One of the steps.
#[derive(Debug)]
pub(crate) struct RowStep {
    pub(crate) settings: Arc<StepSettings>,
    pub(crate) groups: Groups,
    /// What the gradients are multiplied with: one over the loss scale, where there is one.
    pub(crate) factor: Option<f64>,
}

/// What stages know of each step when their gradients are whole, put together.
#[derive(Debug)]
pub(crate) struct Votes {
    stages: usize,
    /// The limit of the gradients' norm; infinity only measures it. None where nobody asks.
    max_norm: Option<f64>,
    told: Mutex<Told>,
}

#[derive(Debug)]
struct Told {
    /// By step.
    steps: Vec<Vote>,
    /// The first step whose gradients are to be clipped.
    clipped: Option<usize>,
}

/// What is known of a step.
#[derive(Debug, Clone, Default)]
struct Vote {
    /// Stages whose gradients are whole.
    closed: usize,
    /// By stage, place of the parameter: the norms of gradients.
    norms: Vec<((usize, usize), f64)>,
    /// The norm of all gradients, once all stages have told theirs.
    total: Option<f64>,
}

impl Votes {
    pub(crate) fn new(stages: usize, steps: usize, max_norm: Option<f64>) -> Self {
        Self {
            stages,
            max_norm,
            told: Mutex::new(Told {
                steps: vec![Vote::default(); steps],
                clipped: None,
            }),
        }
    }

    /// The norms of a stage's gradients of a step. The last stage to tell finds out whether the
    /// gradients are to be clipped, before another stage can have updated by those of the step
    /// after.
    ///
    /// # Errors
    /// They are: the step is to be done again.
    fn tell(&self, step: usize, stage: usize, norms: Vec<(usize, f64)>) -> anyhow::Result<()> {
        let mut told = self.told.lock();
        let told = &mut *told;
        let Some(vote) = told.steps.get_mut(step) else {
            bail!("a stage closes step {step}, which is not one of them");
        };
        let placed = norms.into_iter();
        vote.norms
            .extend(placed.map(|(place, norm)| ((stage, place), norm)));
        vote.closed += 1;
        let Some(max_norm) = self.max_norm.filter(|_| vote.closed == self.stages) else {
            return Ok(());
        };
        // In the model's order, as between steps.
        vote.norms.sort_by_key(|(place, _)| *place);
        let norms: Vec<f64> = vote.norms.drain(..).map(|(_, norm)| norm).collect();
        let total = total_norm(&norms);
        vote.total = Some(total);
        if total.is_finite() && clip_factor(max_norm, total) < 1.0 {
            told.clipped = Some(step);
            bail!("the gradients of step {step} in a row, of norm {total}, are to be clipped");
        }
        Ok(())
    }

    /// Where the steps came to nothing: how many of them there are up to the one that is to blame.
    pub(crate) fn suspects(&self) -> usize {
        let told = self.told.lock();
        let closed = told.steps.iter();
        let closed = closed.take_while(|own| own.closed == self.stages).count();
        // A stage that fails is at the step that not all have closed, or at the next one.
        let last = told.clipped.map_or(closed + 2, |step| step + 1);
        last.min(told.steps.len())
    }

    /// The norm of all gradients of a step, which all stages have closed; none where nobody asks.
    pub(crate) fn norm(&self, step: usize) -> Option<f64> {
        self.told.lock().steps.get(step)?.total
    }
}

/// Steps in a row that a stage is in, and what it was before them.
#[derive(Debug)]
pub(super) struct InRow {
    row: Arc<Row>,
    parameters: Vec<Tensor>,
    buffers: Vec<Tensor>,
    /// None where the optimizer has not seen the stage yet.
    optimizer: Option<OptimizerState>,
}

impl InRow {
    fn bytes(&self) -> u64 {
        let own = self.parameters.iter().chain(&self.buffers).map(bytes);
        let optimizer = self.optimizer.as_ref().map_or(0, OptimizerState::bytes);
        own.sum::<u64>() + optimizer
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

impl TorchStage {
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

    /// Keeps what the stage is. *Returns* the bytes of it.
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

    /// They do not: puts back what the stage was before them. Without any it does nothing.
    pub(crate) fn undo_row(&mut self) -> anyhow::Result<()> {
        let Some(kept) = self.take_row() else {
            return Ok(());
        };
        // Of the step that the stage is in.
        self.abort();
        let id = kept.row.optimizer.0;
        let (passes, optimizers) = self.update_parts();
        let done = put_back(passes.accumulator().parameters(), &kept.parameters)
            .and_then(|()| put_back(passes.compute().buffers().named(), &kept.buffers))
            .and_then(|()| passes.accumulator_mut().zero_grad());
        if let Err(error) = done {
            // It is tried again.
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
