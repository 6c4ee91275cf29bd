//! Requests for CUDA graphs on a stage, and obstacles to them, detected while its layers run without them.

use std::cell::RefCell;
use std::rc::Rc;

use crate::ffi::RandomScope;
use crate::layer::Context;

/// Why a stage cannot use CUDA graphs, once that is known.
#[derive(Debug, Default)]
pub(super) struct GraphAudit(RefCell<Option<String>>);

impl GraphAudit {
    pub(super) fn new(refused: Option<String>) -> Self {
        Self(RefCell::new(refused))
    }

    /// Refuses graphs from now on, for this reason; the first reason is kept.
    pub(super) fn refuse(&self, why: impl FnOnce() -> String) {
        self.0.borrow_mut().get_or_insert_with(why);
    }

    pub(super) fn is_refused(&self) -> bool {
        self.0.borrow().is_some()
    }

    pub(super) fn why(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    /// # Errors
    /// Graphs have been refused.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match &*self.0.borrow() {
            Some(why) => Err(anyhow::anyhow!("{why}")),
            None => Ok(()),
        }
    }

    /// Notes what a layer did that a graph could not do again.
    pub(super) fn layer(&self, layer: &str, ctx: &Context, random: &RandomScope) {
        if self.is_refused() {
            return;
        }
        if random.drew() {
            self.refuse(|| {
                format!("layer `{layer}` draws random numbers, which a graph cannot draw anew")
            });
        }
        if ctx.has_gathered() {
            self.refuse(|| {
                format!("layer `{layer}` gathers something over a step, which a graph would not do")
            });
        }
        if ctx.asked_for_micro() {
            self.refuse(|| {
                format!("layer `{layer}` asks for its micro-batch, which a graph does not know")
            });
        }
    }

    /// Records whether the loss function wrote to its inputs; it must not write to a replay's
    /// outputs, since the backward may need them.
    pub(super) fn loss(&self, wrote: bool, replayed: bool) -> anyhow::Result<()> {
        if !wrote || self.is_refused() {
            return Ok(());
        }
        self.refuse(|| "the loss function changes the outputs in place".to_owned());
        anyhow::ensure!(
            !replayed,
            "the loss function changed the outputs in place, which it had not done before: CUDA \
             graphs are not used here from now on, run the step again"
        );
        Ok(())
    }
}

/// Whether a stage captures graphs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Graphing {
    #[default]
    Off,
    On,
    /// Requested but impossible, for this reason.
    Refused(String),
}

/// Use of CUDA graphs on a stage; see
/// [`PipelineBuilder::cuda_graphs`](crate::PipelineBuilder::cuda_graphs).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphUse {
    /// Graphs that were captured.
    pub captured: u64,
    /// Graphs that were replayed.
    pub replayed: u64,
    /// Reason why the stage computes without graphs (and will not try again); `None` if there is no
    /// obstacle.
    pub eager: Option<String>,
}

impl Graphing {
    /// Returns the audit of obstacles, if graphs are requested.
    pub(super) fn audit(&self) -> Option<Rc<GraphAudit>> {
        let refused = match self {
            Self::Off => return None,
            Self::On => None,
            Self::Refused(why) => Some(why.clone()),
        };
        Some(Rc::new(GraphAudit::new(refused)))
    }
}
