//! The ways of values from one layer to the next, and past it.

use std::collections::HashMap;

use tch::Tensor;

use super::TorchStage;
use super::activations::Transit;
use super::own_tensors::Own;
use super::writes::Watched;
use crate::torch::error::TorchError;
use crate::torch::ffi;
use crate::torch::skips::Stashed;
use crate::torch::values::Values;

impl TorchStage {
    /// What a layer finds to pop, by name: snapshots, which share memory neither with what
    /// else it is given nor with each other.
    pub(super) fn waiting(
        &self,
        number: usize,
        inputs: &Values,
        transit: &mut Transit,
    ) -> Result<HashMap<String, Option<Tensor>>, TorchError> {
        let layer = self.first_layer + number;
        let skips = self.skips.iter().enumerate();
        let popped: Vec<(String, Option<Tensor>)> = skips
            .filter(|(_, skip)| skip.to == layer)
            .map(|(id, skip)| (skip.name.clone(), transit.remove(&id).flatten()))
            .collect();
        if popped.is_empty() {
            return Ok(HashMap::new());
        }
        let values = popped.iter().map(|(_, value)| value.as_ref());
        let first = ffi::aliases(inputs.iter().chain(values))?;
        let shares = |index: usize| {
            let group = |first: &Vec<usize>| {
                let others = first.iter().filter(|other| **other == first[index]);
                others.count() > 1
            };
            first.as_ref().is_some_and(group)
        };
        let snapshot = |(place, (name, value)): (usize, (String, Option<Tensor>))| match value {
            Some(value) if shares(inputs.len() + place) => Ok((name, Some(ffi::copy(&value)?))),
            value => Ok((name, value)),
        };
        popped.into_iter().enumerate().map(snapshot).collect()
    }

    /// Puts what a layer stashed on its ways.
    pub(super) fn stashed(
        &self,
        number: usize,
        stashed: &[Stashed],
        run: &mut Run<'_>,
    ) -> Result<(), TorchError> {
        let layer = self.first_layer + number;
        for (id, skip) in self.skips.iter().enumerate().rev() {
            let own = |stash: &&Stashed| skip.from == layer && skip.name == stash.name;
            let Some(stash) = stashed.iter().find(own) else {
                continue;
            };
            let value = stash.value.as_ref().map(|value| {
                if run.copy_stashes {
                    return ffi::accumulation_node(&ffi::copy(value)?);
                }
                run.stashed.push((value.shallow_clone(), stash.changes));
                ffi::accumulation_node(value)
            });
            run.transit.insert(id, value.transpose()?);
        }
        Ok(())
    }
}

/// A layer's outputs, each on a way of its own where there are other ways.
///
/// One value may leave a layer several times: as outputs, stashed, passed on by the
/// next. Where a stage ends there, what comes back along each way has been added up
/// on the other side, and the sums then join in the order of the graph's roots: the
/// skips, then the outputs. The same is done where no stage ends, so that the bits
/// do not depend on it; ways begun last come first. Outputs that share memory have one
/// way, here as across a border, since a change of one is a change of all. None is a view
/// of anything inside its layer, as none is across a border.
pub(super) fn apart(outputs: Values, several: bool) -> Result<Values, TorchError> {
    if !several && outputs.len() < 2 {
        return outputs.try_map(ffi::no_view);
    }
    Ok(ffi::accumulation_nodes(outputs.iter())?
        .into_iter()
        .collect())
}

/// Where the values of skips are during a run.
pub(super) struct Run<'a> {
    pub(super) transit: &'a mut Transit,
    pub(super) stashed: &'a mut Watched,
    pub(super) own: &'a mut Own,
    pub(super) copy_stashes: bool,
}
