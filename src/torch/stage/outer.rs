//! Local steps (DiLoCo, Douillard et al. 2023, arXiv 2311.08105): replicas that train alone for
//! some steps, a *round*, and are combined by an outer step.
//!
//! ```text
//! before the first update   the owner of a parameter keeps its weights, x
//! after the last one        every copy gives the owner the weights it has come to, y0, y1, …
//!                           g = ((x - y0) + (x - y1) + …) / d, in a balanced binary tree
//!                           v = momentum · v + g; the first time v = g
//!                           x - rate · (g + momentum · v) are the new weights (SGD, Nesterov)
//!                           the owner gives them to all
//! ```
//!
//! Floating-point buffers become the mean of the copies' (in the same tree, by replica 0), others
//! those of replica 0. Ownership is as with a sharded optimizer (`parameter_ownership.rs`), so that each part of
//! the outer step's state is in one replica.

use std::collections::BTreeMap;

use tch::Tensor;

use super::portable::{Portable, Role};
use crate::copies;
use crate::error::TorchError;
use crate::optim::Parts;

/// The weights at a round's begin, by name in checkpoints.
const START: &str = "start";
/// The outer momentum.
const MOMENTUM: &str = "momentum";

/// Hyperparameters of the outer step, which combines replicas that train alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OuterStep {
    /// The learning rate of the outer SGD.
    pub(crate) learning_rate: f64,
    /// Its Nesterov momentum; 0 is none.
    pub(crate) momentum: f64,
}

/// A copy's state of the parameters that it owns, by their indices.
#[derive(Debug, Default)]
pub(super) struct Outer {
    /// Weights at the start of the round; empty between rounds.
    pub(super) start: BTreeMap<usize, Tensor>,
    pub(super) momentum: BTreeMap<usize, Tensor>,
    /// Result of the outer step, until all copies have it.
    pub(super) next: Option<Next>,
}

/// Result of the outer step, of what this copy owns.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) weights: BTreeMap<usize, Tensor>,
    pub(super) momentum: BTreeMap<usize, Tensor>,
    /// In replica 0: the buffers that change, by index.
    pub(super) buffers: BTreeMap<usize, Tensor>,
}

impl Outer {
    /// Returns the state of a parameter.
    fn parts(&self, place: usize) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let start = self.start.get(&place).map(|own| (START, own));
        let momentum = self.momentum.get(&place).map(|own| (MOMENTUM, own));
        start.into_iter().chain(momentum)
    }

    /// Copies of all of it, in the host's memory.
    pub(super) fn portable(
        &self,
        parameters: &[(String, Tensor)],
    ) -> anyhow::Result<Vec<Portable>> {
        let all = parameters.iter().enumerate();
        let all = all.flat_map(|(place, (name, _))| {
            self.parts(place)
                .map(move |(part, tensor)| (name, part, tensor))
        });
        all.map(|(name, part, tensor)| {
            Ok(Portable {
                role: Role::Outer(part.to_owned()),
                name: name.clone(),
                tensor: copies::host_copy(tensor)?,
            })
        })
        .collect()
    }

    /// Goes on from that.
    pub(super) fn remember(
        &mut self,
        place: usize,
        parameter: &Tensor,
        parts: &Parts,
    ) -> Result<(), TorchError> {
        for (name, all) in [(START, &mut self.start), (MOMENTUM, &mut self.momentum)] {
            if let Some(part) = parts.get(name) {
                all.insert(place, copies::like(parameter, part)?);
            }
        }
        Ok(())
    }
}

/// The outer SGD: the new weights, and the momentum where there is any.
pub(super) fn step(
    outer: OuterStep,
    start: &Tensor,
    momentum: Option<&Tensor>,
    mean: &Tensor,
) -> Result<(Tensor, Option<Tensor>), TorchError> {
    if outer.momentum == 0.0 {
        let moved = mean.f_mul_scalar(outer.learning_rate)?;
        return Ok((start.f_sub(&moved)?, None));
    }
    let momentum = match momentum {
        Some(own) => own.f_mul_scalar(outer.momentum)?.f_add(mean)?,
        None => mean.copy(),
    };
    let ahead = momentum.f_mul_scalar(outer.momentum)?.f_add(mean)?;
    let moved = ahead.f_mul_scalar(outer.learning_rate)?;
    Ok((start.f_sub(&moved)?, Some(momentum)))
}

/// The mean of tensors whose number is a power of two, added up in a balanced binary tree.
pub(super) fn mean(mut all: Vec<Tensor>) -> Result<Tensor, TorchError> {
    let count = all.len() as f64;
    while all.len() > 1 {
        let mut rest = all.into_iter();
        let mut sums = Vec::new();
        while let Some(left) = rest.next() {
            sums.push(match rest.next() {
                Some(right) => left.f_add(&right)?,
                None => left,
            });
        }
        all = sums;
    }
    let sum = all
        .pop()
        .ok_or_else(|| TorchError::new("a mean of nothing"))?;
    Ok(sum.f_div_scalar(count)?)
}
