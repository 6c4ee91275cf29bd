//! Exchange between a stage and its copies in other replicas after its last backward of a step: a
//! reduce-scatter and an all-gather.
//!
//! ```text
//! round 0   every copy ends with the sum of its own leaves (`leaves.rs`), and gives each other
//!           copy the sums of the parameters that this one owns
//! round 1   the owner adds up the copies' sums, in a balanced binary tree in the order of the
//!           replicas, which is the upper part of the tree over all leaves, and gives all others
//!           the result
//! round 2   every copy sets what the owners gave
//! ```
//!
//! Within a process gradients are handed over, not copied. A copy keeps handles of the gradients
//! that it gave: between its round 0 and the end of the owner's round 1 the owner adds in their
//! memory; in round 2 the result is copied there. So each copy ends with its own memory, and a step
//! allocates nothing for the exchange.
//!
//! With [`Sums::AtOwners`] (ZeRO-1) the owner keeps the sums: rounds 1 and 2 only carry state
//! committed by layers, and tell the copies that their gradients are no longer read.
//!
//! Layers that gather state over a step ([`StepState`](crate::StepState)) send it to the last
//! replica, the only one that always has micro-batches. It commits all of it on trial: the
//! resulting values of the stage's buffers are sent to all, and count when the step does
//! ([`super::buffers`]).

use tch::Tensor;

use super::accumulator::{Accumulator, Gradients, added_sets};
use super::compute::Compute;
use super::gathered;
use crate::copies;
use crate::error::TorchError;
use crate::streams::MemorySpace;
use crate::values::Values;

/// Which of a stage's copies have the gradient sums after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sums {
    /// Each copy has all sums.
    #[default]
    InAll,
    /// Each has those of the parameters that it owns, and updates these alone (`parameter_ownership.rs`).
    AtOwners,
    /// Each copy has only the gradients of its own micro-batches: nothing is exchanged in a step
    /// (`outer.rs`).
    Alone,
}

/// A stage's copies in the replicas of its pipeline.
#[derive(Debug, Clone)]
pub(crate) struct Copies {
    /// The replica that the stage is in.
    pub(crate) replica: usize,
    pub(crate) sums: Sums,
    /// Memory space of each replica's copy; `None` in another process.
    pub(crate) places: Vec<Option<MemorySpace>>,
}

impl Copies {
    /// A stage without any but itself.
    pub(crate) fn alone() -> Self {
        Self {
            replica: 0,
            sums: Sums::InAll,
            places: vec![Some(MemorySpace::Host)],
        }
    }

    /// Returns the number of replicas.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Returns, by parameter, then by tied copy, the replica that adds up its gradient.
    pub(super) fn owners(&self, accumulator: &Accumulator) -> Vec<usize> {
        owners(&accumulator.sizes().collect::<Vec<_>>(), self.count())
    }

    /// The other replicas, in order.
    fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.replica;
        (0..self.count()).filter(move |other| *other != own)
    }

    /// Returns the memory spaces of the other replicas' copies, in order.
    pub(super) fn other_places(&self) -> Vec<Option<MemorySpace>> {
        self.others().map(|other| self.places[other]).collect()
    }

    /// The replica that commits what layers have gathered.
    fn last(&self) -> usize {
        self.count() - 1
    }

    fn is_last(&self) -> bool {
        self.replica == self.last()
    }
}

/// The exchange of a stage that has copies.
#[derive(Debug)]
pub(super) struct Exchange {
    copies: Copies,
    /// Replica that adds up each gradient, by parameter, then by tied copy.
    owners: Vec<usize>,
    /// This copy's own gradients, from round 0 to round 2.
    own: Gradients,
    /// How often the parameters had been written to when the step began.
    began: Vec<i64>,
    /// Whether a whole step has been inspected.
    looked: bool,
}

impl Exchange {
    /// `None` for a stage without copies.
    pub(super) fn new(copies: &Copies) -> Option<Self> {
        (copies.count() > 1 && copies.sums != Sums::Alone).then(|| Self {
            copies: copies.clone(),
            owners: Vec::new(),
            own: Vec::new(),
            began: Vec::new(),
            looked: false,
        })
    }

    /// A training step begins.
    pub(super) fn begin(&mut self, accumulator: &Accumulator) -> Result<(), TorchError> {
        self.own.clear();
        self.began = accumulator.changes()?;
        Ok(())
    }

    /// Drops what a step has left.
    pub(super) fn clear(&mut self) {
        self.own.clear();
    }

    /// Runs a round: takes one value from each other copy, in order, and returns one for each.
    pub(super) fn round(
        &mut self,
        round: usize,
        from: Vec<Values>,
        accumulator: &mut Accumulator,
        compute: &mut Compute,
    ) -> anyhow::Result<Vec<Values>> {
        match round {
            0 => self.reduce(accumulator, compute),
            1 => self.combine(from, compute),
            _ => self.set(from, accumulator, compute).map(|()| Vec::new()),
        }
    }

    /// Round 0.
    fn reduce(
        &mut self,
        accumulator: &mut Accumulator,
        compute: &mut Compute,
    ) -> anyhow::Result<Vec<Values>> {
        gathered::check_buffers(compute, &mut self.looked)?;
        gathered::check_parameters(compute, accumulator, &self.began)?;
        self.own = accumulator.take_share()?;
        self.owners = self.copies.owners(accumulator);
        let own = gathered::Own::take(compute, !self.copies.is_last())?;
        let values = |other: usize| {
            let mut values = self.part(other);
            if other == self.copies.last() {
                own.append_to(&mut values)?;
            }
            Ok(values)
        };
        self.copies.others().map(values).collect()
    }

    /// Returns this copy's gradients of the parameters that a replica owns.
    fn part(&self, owner: usize) -> Values {
        let all = self.own.iter().zip(&self.owners);
        let part = all.filter(|(_, own)| **own == owner);
        part.map(|(grad, _)| grad.as_ref().map(Tensor::shallow_clone))
            .collect()
    }

    /// Round 1.
    fn combine(&mut self, from: Vec<Values>, compute: &mut Compute) -> anyhow::Result<Vec<Values>> {
        let own: Gradients = self.part(self.copies.replica).into_iter().collect();
        let mut of_layers = Vec::new();
        let mut parts = Vec::with_capacity(self.copies.count());
        for values in from {
            let mut part: Gradients = values.into_iter().collect();
            anyhow::ensure!(
                part.len() >= own.len(),
                "a replica sent the gradients of {} parameters, and {} are owned here",
                part.len(),
                own.len()
            );
            of_layers.push(part.split_off(own.len()));
            parts.push(part);
        }
        parts.insert(self.copies.replica, own);
        let sums = tree(parts)?;
        let sums = self.keep(self.copies.replica, sums)?;
        let buffers = if self.copies.is_last() {
            gathered::commit_on_trial(compute, of_layers)?
        } else {
            Values::new()
        };
        let given = match self.copies.sums {
            Sums::InAll => &sums[..],
            Sums::AtOwners | Sums::Alone => &[],
        };
        let handle = |value: Option<&Tensor>| value.map(Tensor::shallow_clone);
        let values = |_| {
            let sums = given.iter().map(|sum| handle(sum.as_ref()));
            sums.chain(buffers.iter().map(handle)).collect()
        };
        Ok(self.copies.others().map(values).collect())
    }

    /// Round 2.
    fn set(
        &mut self,
        from: Vec<Values>,
        accumulator: &Accumulator,
        compute: &mut Compute,
    ) -> anyhow::Result<()> {
        let others: Vec<usize> = self.copies.others().collect();
        for (owner, values) in others.into_iter().zip(from) {
            let owned = match self.copies.sums {
                Sums::InAll => self.owners.iter().filter(|own| **own == owner).count(),
                Sums::AtOwners | Sums::Alone => 0,
            };
            let mut sums: Gradients = values.into_iter().collect();
            anyhow::ensure!(
                sums.len() >= owned,
                "replica {owner} sent {} sums of gradients, and owns {owned}",
                sums.len()
            );
            let buffers = sums.split_off(owned);
            match self.copies.sums {
                Sums::InAll => drop(self.keep(owner, sums)?),
                Sums::AtOwners | Sums::Alone => self.drop_part(owner),
            }
            if !buffers.is_empty() {
                compute.buffers_mut().set_pending(buffers)?;
            }
        }
        let own = std::mem::take(&mut self.own);
        Ok(accumulator.set_sums(&own)?)
    }

    /// Drops this copy's gradients of what another replica owns, which has added them up.
    fn drop_part(&mut self, owner: usize) {
        let own = self.own.iter_mut().zip(&self.owners);
        let own = own.filter(|(_, of)| **of == owner);
        own.for_each(|(own, _)| *own = None);
    }

    /// Puts the sums of what a replica owns into this copy's own memory. *Returns* them there.
    fn keep(&mut self, owner: usize, sums: Gradients) -> Result<Gradients, TorchError> {
        let own = self.own.iter_mut().zip(&self.owners);
        let own = own.filter(|(_, of)| **of == owner);
        let kept = own.zip(sums).map(|((own, _), sum)| {
            *own = match (own.take(), sum) {
                (_, None) => None,
                (Some(own), Some(sum)) if is_like(&own, &sum) => {
                    if own.data_ptr() != sum.data_ptr() {
                        copies::fill(&own, &sum)?;
                    }
                    Some(own)
                }
                (_, Some(sum)) => Some(copies::same_strides(&sum)?),
            };
            Ok(own.as_ref().map(Tensor::shallow_clone))
        });
        kept.collect()
    }
}

/// Returns whether one tensor's memory fits the other's elements exactly.
fn is_like(one: &Tensor, other: &Tensor) -> bool {
    let dense = !one.is_sparse() && !other.is_sparse();
    dense
        && one.device() == other.device()
        && one.kind() == other.kind()
        && one.size() == other.size()
        && one.stride() == other.stride()
}

/// The sums of all replicas, whose number is a power of two, in a balanced binary tree.
fn tree(mut parts: Vec<Gradients>) -> anyhow::Result<Gradients> {
    while parts.len() > 1 {
        let mut rest = parts.into_iter();
        let mut sums = Vec::new();
        while let Some(left) = rest.next() {
            sums.push(match rest.next() {
                Some(right) => added_sets(left, right)?,
                None => left,
            });
        }
        parts = sums;
    }
    Ok(parts.pop().unwrap_or_default())
}

/// Assigns each number of bytes to a replica: the largest first, to the replica with the fewest
/// bytes, or the first of several such.
fn owners(bytes: &[u64], replicas: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(bytes[*place]));
    let mut loads = vec![0; replicas];
    let mut owners = vec![0; bytes.len()];
    for place in order {
        let least = (0..replicas).min_by_key(|replica| loads[*replica]);
        owners[place] = least.unwrap_or_default();
        loads[owners[place]] += bytes[place];
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_shared_out_by_their_bytes() {
        assert_eq!(owners(&[4, 100, 4, 60, 40], 2), [0, 0, 1, 1, 1]);
        assert_eq!(owners(&[8, 8, 8, 8], 4), [0, 1, 2, 3]);
        assert_eq!(owners(&[8], 2), [0]);
        assert!(owners(&[], 2).is_empty());
    }
}
