//! Consecutive steps without barriers, and undoing them.
//!
//! Before the first step a stage saves everything that updates and forwards change: its parameters,
//! its buffers, and the optimizer's state. When its gradients of a step are complete, it does the
//! work between steps in the same order as with a barrier: it checks that they are finite, unscales
//! them, computes their norm, updates, and begins the next step. Facts that need all stages are in
//! [`Votes`]. If one of the steps does not count unchanged, or a stage fails, the saved state is
//! restored.

use std::sync::{Arc, Weak};

use anyhow::bail;
use parking_lot::Mutex;
use tch::Tensor;

use crate::gradients::{clip_factor, total_norm};
use crate::optim::{Groups, OptimizerState};
use crate::sequential::bytes;
use crate::step::StepSettings;

/// Parameters of a run of steps.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) steps: Vec<RowStep>,
    /// The optimizer's id, and whether it still exists.
    pub(crate) optimizer: (u64, Weak<()>),
    /// Whether a non-finite gradient skips its step.
    pub(crate) skips: bool,
    pub(crate) votes: Votes,
}

/// One of the steps.
#[derive(Debug)]
pub(crate) struct RowStep {
    pub(crate) settings: Arc<StepSettings>,
    pub(crate) groups: Groups,
    /// Factor of the gradients: one over the loss scale, if there is one.
    pub(crate) factor: Option<f64>,
}

/// Combined knowledge of the stages about each step once their gradients are complete.
#[derive(Debug)]
pub(crate) struct Votes {
    stages: usize,
    /// Limit of the gradient norm; infinity only measures it. `None` if it is not requested.
    pub(super) max_norm: Option<f64>,
    told: Mutex<Told>,
}

#[derive(Debug)]
struct Told {
    /// Votes by step.
    steps: Vec<Vote>,
    /// The first step whose gradients must be clipped.
    clipped: Option<usize>,
}

/// Knowledge about a step.
#[derive(Debug, Clone, Default)]
struct Vote {
    /// Number of stages whose gradients are complete.
    closed: usize,
    /// Gradient norms, by stage and parameter index.
    norms: Vec<((usize, usize), f64)>,
    /// Norm of all gradients, once all stages have reported theirs.
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

    /// Reports the norms of a stage's gradients of a step. The last stage to report finds out
    /// whether the gradients must be clipped, before another stage can have updated with those of
    /// the next step.
    ///
    /// # Errors
    /// They must be clipped: the step has to be repeated.
    pub(super) fn tell(
        &self,
        step: usize,
        stage: usize,
        norms: Vec<(usize, f64)>,
    ) -> anyhow::Result<()> {
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

    /// Returns, for a failed run, the number of steps up to the one responsible.
    pub(crate) fn suspects(&self) -> usize {
        let told = self.told.lock();
        let closed = told.steps.iter();
        let closed = closed.take_while(|own| own.closed == self.stages).count();
        // A stage that fails is at the step that not all have closed, or at the next one.
        let last = told.clipped.map_or(closed + 2, |step| step + 1);
        last.min(told.steps.len())
    }

    /// Returns the norm of all gradients of a step that all stages have closed; `None` if not
    /// requested.
    pub(crate) fn norm(&self, step: usize) -> Option<f64> {
        self.told.lock().steps.get(step)?.total
    }
}

/// A stage's current run of steps, and its state before them.
#[derive(Debug)]
pub(super) struct InRow {
    pub(super) row: Arc<Row>,
    pub(super) parameters: Vec<Tensor>,
    pub(super) buffers: Vec<Tensor>,
    /// `None` if the optimizer has not seen the stage yet.
    pub(super) optimizer: Option<OptimizerState>,
}

impl InRow {
    pub(super) fn bytes(&self) -> u64 {
        let own = self.parameters.iter().chain(&self.buffers).map(bytes);
        let optimizer = self.optimizer.as_ref().map_or(0, OptimizerState::bytes);
        own.sum::<u64>() + optimizer
    }
}
