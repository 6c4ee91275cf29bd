//! The optimizers' states for a stage's parameters.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Weak;

use tch::Tensor;

use crate::error::TorchError;
use crate::optim::{Groups, OptimizerState, Parts};
use crate::streams::DeviceStreams;

/// Optimizer states of a stage's parameters, by the optimizers' ids.
#[derive(Debug)]
pub(super) struct Optimizers {
    streams: Rc<DeviceStreams>,
    /// States, with whether each optimizer is still alive.
    states: HashMap<u64, (Weak<()>, OptimizerState)>,
}

impl Optimizers {
    pub(super) fn new(streams: Rc<DeviceStreams>) -> Self {
        let states = HashMap::new();
        Self { streams, states }
    }

    /// The state of an optimizer, a new one where there is none yet.
    fn of(&mut self, id: u64, alive: &Weak<()>) -> &mut OptimizerState {
        let new = || (Weak::clone(alive), OptimizerState::default());
        &mut self.states.entry(id).or_insert_with(new).1
    }

    /// Takes all that an update of these parameters needs; forgets optimizers that are gone.
    pub(super) fn prepare(
        &mut self,
        (id, alive): (u64, &Weak<()>),
        groups: &Groups,
        parameters: &[(String, Tensor)],
    ) -> Result<(), TorchError> {
        self.states.retain(|_, (alive, _)| alive.strong_count() > 0);
        let streams = Rc::clone(&self.streams);
        self.of(id, alive).prepare(groups, parameters, &streams)
    }

    /// Abandons a prepared update, as some stage cannot update.
    pub(super) fn abandon(&mut self, id: u64) {
        if let Some((_, state)) = self.states.get_mut(&id) {
            state.abandon();
        }
    }

    /// Applies and clears the gradients of these parameters, for which it is prepared;
    /// leaves them alone where `found_inf` is 1.
    pub(super) fn apply(
        &mut self,
        id: u64,
        groups: &Groups,
        parameters: &[(String, Tensor)],
        found_inf: Option<&Tensor>,
    ) -> Result<(), TorchError> {
        match self.states.get_mut(&id) {
            Some((_, state)) => state.apply(groups, parameters, &self.streams, found_inf),
            None => Ok(()),
        }
    }

    /// Returns an optimizer's state.
    pub(super) fn get(&self, id: u64) -> Option<&OptimizerState> {
        self.states.get(&id).map(|(_, state)| state)
    }

    /// Drops what an optimizer remembers.
    pub(super) fn forget(&mut self, id: u64) {
        self.states.remove(&id);
    }

    /// Resumes from parts of the state, by the parameters' indices; `offload` tells whether the
    /// optimizer keeps its state on the host.
    pub(super) fn remember(
        &mut self,
        (id, alive): (u64, &Weak<()>),
        offload: bool,
        parameters: &[(String, Tensor)],
        parts: BTreeMap<usize, Parts>,
    ) -> Result<(), TorchError> {
        let streams = Rc::clone(&self.streams);
        let state = self.of(id, alive);
        for (place, parts) in parts {
            let host = offload.then_some(&*streams);
            state.remember(place, &parameters[place].1, &parts, host)?;
        }
        Ok(())
    }

    /// Leaks all of it: see [`super::lost_device`].
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.states));
    }
}
