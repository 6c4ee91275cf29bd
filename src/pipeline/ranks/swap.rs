//! What copies of a stage in different processes give each other between steps.

use std::thread;

use gpipe_partitioner::StageId;
use tch::Device;

use super::{Ranks, stopped};
use crate::error::Error;
use crate::pipeline::stages::{CopyId, Given};
use crate::torch::{TorchError, Values};

impl Ranks {
    /// Gives what copies here have `given` to those in other processes, and takes what is for
    /// copies here, to the host's memory. All call this.
    ///
    /// Each process is with one other one at a time, and both give while they take: in round k
    /// with the one whose number differs from its own in the bits of k, so that nobody waits for
    /// a third.
    ///
    /// # Errors
    /// One of them fails, or is lost.
    pub(in crate::pipeline) fn swap(&self, given: &Given) -> Result<Given, Error> {
        let (own, size) = (self.world.rank(), self.world.size());
        let mut taken = Given::new();
        for bits in 1..size.next_power_of_two() {
            let other = own ^ bits;
            if other >= size {
                continue;
            }
            let outgoing = self.between(own, other).map(|pair| match given.get(&pair) {
                // The receiver's own tensors say what requires a gradient.
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

    /// The copies of a stage in one process, each with those in another one.
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
