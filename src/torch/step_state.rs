//! State gathered by layers over a training step, committed or dropped at its end.

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;

use gpipe_partitioner::MicroId;

use super::values::Values;

/// State that a layer gathers in the forward passes of a training step (statistics, counts), and
/// that must count only if the step does.
///
/// A layer keeps it in an [`Rc`] and passes it to [`Context::gathers`](crate::Context::gathers) in
/// every forward pass that adds to it. The stage then calls one of the two methods when the step is
/// over. Surrounding layers need not know of it.
#[doc(alias = "deferred batch norm")]
pub trait StepState: Debug {
    /// The step ended well on every stage: the gathered state counts. Called before the next step
    /// begins and before the caller sees parameters or buffers.
    ///
    /// # Errors
    /// Any error of the layer; the call that needed the outcome fails.
    fn commit(&self) -> anyhow::Result<()>;

    /// The step failed or was skipped: what was gathered must not count. Buffers are
    /// restored by the stage.
    fn discard(&self);

    /// Returns the gathered state by micro-batch, for pipelines with
    /// [replicas](crate::PipelineBuilder::replicas), each of which sees only some of the
    /// micro-batches. The stage passes the parts of all replicas to one of them
    /// ([`merge`](Self::merge)), which commits; only the resulting changes of buffers reach the
    /// others. `None`, the default: it cannot be shared, and a step with replicas fails.
    ///
    /// # Errors
    /// Any error of the layer; the step fails.
    #[doc(alias = "data parallel")]
    fn parts(&self) -> anyhow::Result<Option<GatheredParts>> {
        Ok(None)
    }

    /// Adds what was gathered in the micro-batches of another replica, to the same as if this
    /// layer had seen them.
    ///
    /// # Errors
    /// Whatever stops the layer; the step fails.
    fn merge(&self, parts: Vec<(MicroId, Values)>) -> anyhow::Result<()> {
        let _ = parts;
        anyhow::bail!("what it gathers cannot be added to")
    }
}

/// State gathered by a [`StepState`].
#[derive(Debug)]
pub struct GatheredParts {
    /// Identifies the state among the layer's others, equally in every copy of the layer: for
    /// example the path of its variables.
    pub name: String,
    /// Parts by micro-batch.
    pub parts: Vec<(MicroId, Values)>,
}

/// The step states of a stage's layers in the present step, each once, in the order in which
/// they were first used.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepStates(Rc<RefCell<Vec<Gathered>>>);

/// A step state and the layer of the stage that it belongs to.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) layer: usize,
    pub(crate) state: Rc<dyn StepState>,
}

impl StepStates {
    pub(crate) fn add<T: StepState + 'static>(&self, layer: usize, state: &Rc<T>) {
        let state: Rc<dyn StepState> = Rc::<T>::clone(state);
        let mut all = self.0.borrow_mut();
        if !all.iter().any(|own| Rc::ptr_eq(&own.state, &state)) {
            all.push(Gathered { layer, state });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Returns the result of `job` for each state.
    pub(crate) fn each<T>(
        &self,
        mut job: impl FnMut(usize, &dyn StepState) -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<T>> {
        let all = self.0.borrow();
        all.iter().map(|own| job(own.layer, &*own.state)).collect()
    }

    /// Removes all of them, to be committed or discarded.
    pub(crate) fn take(&self) -> Vec<Gathered> {
        self.0.take()
    }
}
