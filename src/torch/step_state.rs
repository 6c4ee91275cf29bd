//! What layers gather over a training step, and what becomes of it at the step's end.

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;

/// What a layer gathers in the forward passes of a training step (statistics, counts),
/// and which must count only if the step does.
///
/// A layer keeps it in an [`Rc`] and passes it to
/// [`Context::gathers`](crate::Context::gathers) in every forward pass that adds to it. The
/// stage then calls one of the two methods when the step is over. Layers around that layer
/// need not know of it.
#[doc(alias = "deferred batch norm")]
pub trait StepState: Debug {
    /// The step ended well on every stage: what was gathered counts. Called before the next
    /// step begins and before the caller sees parameters or buffers.
    ///
    /// # Errors
    /// Whatever stops the layer; the call that needed the outcome fails.
    fn commit(&self) -> anyhow::Result<()>;

    /// The step failed or was skipped: what was gathered must not count. Buffers are
    /// restored by the stage.
    fn discard(&self);
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

    /// Removes all of them, to be committed or discarded.
    pub(crate) fn take(&self) -> Vec<Gathered> {
        self.0.take()
    }
}
