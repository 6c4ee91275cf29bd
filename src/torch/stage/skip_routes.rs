//! Paths of values from one layer to the next, and past it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tch::Tensor;

use super::border::SkipValues;
use super::segment;
use crate::error::TorchError;
use crate::ffi;
use crate::skips::{Skip, Stashed};
use crate::values::Values;

/// The skips of a model, as one stage sees them.
#[derive(Debug)]
pub(super) struct SkipRoutes {
    /// All skips of the model.
    skips: Arc<[Skip]>,
    /// Number of the stage's first layer in the model.
    first_layer: usize,
    /// Skips from earlier stages, and to later ones.
    incoming: Vec<usize>,
    outgoing: Vec<usize>,
}

impl SkipRoutes {
    /// For the stage that has these layers of the model.
    pub(super) fn new(layers: &Range<usize>, skips: &Arc<[Skip]>) -> Self {
        Self {
            skips: Arc::clone(skips),
            first_layer: layers.start,
            incoming: segment::incoming(layers, skips),
            outgoing: segment::outgoing(layers, skips),
        }
    }

    /// Returns the numbers of skips from earlier stages.
    pub(super) fn incoming(&self) -> &[usize] {
        &self.incoming
    }

    /// Returns the numbers of skips to later stages.
    pub(super) fn outgoing(&self) -> &[usize] {
        &self.outgoing
    }

    /// Returns whether the model has no skips.
    pub(super) fn is_empty(&self) -> bool {
        self.skips.is_empty()
    }

    /// Returns the values for a layer to pop, by name: snapshots, which share memory neither with
    /// the layer's other inputs nor with each other.
    pub(super) fn pops(
        &self,
        layer: usize,
        inputs: &Values,
        values: &mut SkipValues,
    ) -> Result<HashMap<String, Option<Tensor>>, TorchError> {
        let layer = self.first_layer + layer;
        let skips = self.skips.iter().enumerate();
        let popped: Vec<(String, Option<Tensor>)> = skips
            .filter(|(_, skip)| skip.to == layer)
            .map(|(id, skip)| (skip.name.clone(), values.take(id)))
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

    /// The skips that begin with what a layer stashed, in the order in which their
    /// accumulation nodes are made.
    pub(super) fn stashes<'a>(
        &'a self,
        layer: usize,
        stashed: &'a [Stashed],
    ) -> impl Iterator<Item = (usize, &'a Stashed)> {
        let layer = self.first_layer + layer;
        let skips = self.skips.iter().enumerate().rev();
        skips.filter_map(move |(id, skip)| {
            let own = |stash: &&Stashed| skip.from == layer && skip.name == stash.name;
            Some((id, stashed.iter().find(own)?))
        })
    }
}

/// Returns a layer's outputs, each behind its own accumulation node if several paths lead on from
/// the layer.
///
/// A value may leave a layer several times: as outputs, stashed, passed on by the next. If a stage
/// ends there, the gradients of each path have been added up on the other side, and the sums then
/// join in the order of the graph's roots: the skips, then the outputs. The same is done where no
/// stage ends, so that the bits do not depend on it: each path begins with an accumulation node,
/// and the latest node comes first. Outputs that share memory have one node, here as across a
/// border, since a change of one is a change of all. No output is a view of anything inside its
/// layer, as none is across a border.
pub(super) fn fan_out(outputs: Values, several: bool) -> Result<Values, TorchError> {
    if !several && outputs.len() < 2 {
        return outputs.try_map(ffi::no_view);
    }
    Ok(ffi::accumulation_nodes(outputs.iter())?
        .into_iter()
        .collect())
}
