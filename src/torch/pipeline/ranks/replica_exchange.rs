//! Exchange between copies of a stage in different processes, between steps.

use std::collections::HashMap;
use std::thread;

use gpipe_partitioner::StageId;
use tch::Device;

use super::{CopyId, Ranks, stopped};
use crate::error::Error;
use crate::{TorchError, Values};

/// Values sent from one copy of a stage to another.
pub(in crate::pipeline) type Given = HashMap<(CopyId, CopyId), Values>;

impl Ranks {
    /// Sends the values that local copies have `given` to other processes, and receives those for
    /// local copies into host memory. All processes call this.
    ///
    /// Each process exchanges with one other at a time, both sending and receiving: in round k with
    /// the rank that differs from its own in the bits of k, so that no process waits for a third.
    ///
    /// # Errors
    /// One of them failed, or is lost.
    pub(in crate::pipeline) fn swap(&self, given: &Given) -> Result<Given, Error> {
        let (own, size) = (self.world.rank(), self.world.size());
        let mut taken = Given::new();
        for bits in 1..size.next_power_of_two() {
            let other = own ^ bits;
            if other >= size {
                continue;
            }
            let outgoing = self.between(own, other).map(|pair| match given.get(&pair) {
                // The receiver's own tensors determine what requires a gradient.
                Some(values) => values
                    .shallow_clone()
                    .try_map(|own| own.f_detach()?.f_to_device(Device::Cpu)),
                None => Ok(Values::new()),
            });
            let outgoing: Vec<Values> = outgoing.collect::<Result<_, _>>()?;
            let incoming: Vec<_> = self.between(other, own).collect();
            let (gave, took) = thread::scope(|scope| {
                let giving = scope.spawn(move || {
                    let mut outgoing = outgoing.iter();
                    outgoing.try_for_each(|values| self.give(values, other))
                });
                let took: Result<Vec<_>, Error> = incoming
                    .into_iter()
                    .map(|pair| Ok((pair, self.carrier.take(other).map_err(stopped)?)))
                    .collect();
                (giving.join(), took)
            });
            gave.unwrap_or_else(|_| {
                let why = "the thread that gives weights to another process panicked";
                Err(TorchError::new(why).into())
            })?;
            taken.extend(took?);
        }
        Ok(taken)
    }

    /// Pairs the copies of each stage in one process with those in another.
    fn between(&self, from: usize, to: usize) -> impl Iterator<Item = (CopyId, CopyId)> {
        let stages = self.of_copies.iter().enumerate();
        stages.flat_map(move |(stage, ranks)| {
            let of = move |rank: usize| {
                let all = ranks.iter().enumerate();
                let own = all.filter(move |(_, own)| **own == rank);
                own.map(move |(replica, _)| CopyId {
                    stage: StageId(stage),
                    replica,
                })
            };
            of(from).flat_map(move |from| of(to).map(move |to| (from, to)))
        })
    }
}
