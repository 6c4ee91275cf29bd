//! All that training goes on from: copied out of the stages, and put back into
//! other stages.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tch::Kind;

use super::Pipeline;
use super::local_steps::LocalState;
use crate::error::Error;
use crate::optim::Optimizer;
use crate::torch::{Groups, Portable, Role};

/// Whose tensors a shard of a checkpoint has: those of a stage that all its copies have, of
/// replica 0, or those that the copy in another replica has alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ShardOf {
    pub(crate) stage: usize,
    pub(crate) replica: usize,
}

impl ShardOf {
    /// What all copies of a stage have.
    #[cfg(test)]
    pub(crate) fn stage(stage: usize) -> Self {
        Self { stage, replica: 0 }
    }
}

/// What random layers draw from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Draws {
    pub(crate) seed: u64,
    /// Training steps that have been done.
    pub(crate) steps: u64,
}

/// A parameter's or buffer's type and shape.
pub(crate) type Form = (Kind, Vec<i64>);

/// What a pipeline and its optimizer can go on from.
#[derive(Debug)]
pub(crate) struct Fitting {
    /// Parameters and buffers by role and name.
    pub(crate) forms: BTreeMap<(Role, String), Form>,
    pub(crate) groups: Groups,
}

impl Pipeline {
    /// Copies in the host's memory, of each copy of a stage in this process that has something
    /// which no copy before it has, made on the stages' threads, all at once.
    pub(crate) fn snapshot(
        &mut self,
        optimizer: &Optimizer,
    ) -> Result<Vec<(ShardOf, Vec<Portable>)>, Error> {
        let id = optimizer.id();
        let apart = self.local_state().is_some_and(|own| own.done > 0);
        let all = (self.engine).on_owners(move |_, stage| stage.portable(id, apart))?;
        let shards = all.into_iter().map(|(copy, tensors)| {
            let (stage, replica) = (copy.stage.index(), copy.replica);
            (ShardOf { stage, replica }, tensors)
        });
        let has_something = |(of, own): &(ShardOf, Vec<_>)| of.replica == 0 || !own.is_empty();
        Ok(shards.filter(has_something).collect())
    }

    pub(crate) fn draws(&self) -> Draws {
        Draws {
            seed: self.seed,
            steps: self.steps,
        }
    }

    pub(crate) fn fitting(&mut self, optimizer: &Optimizer) -> Result<Fitting, Error> {
        let parameters = self.parameters()?.into_iter();
        let parameters = parameters.map(|(name, tensor)| (Role::Parameter, name, tensor));
        let buffers = self.buffers()?.into_iter();
        let buffers = buffers.map(|(name, tensor)| (Role::Buffer, name, tensor));
        let forms = parameters
            .chain(buffers)
            .map(|(role, name, tensor)| ((role, name), (tensor.kind(), tensor.size())));
        Ok(Fitting {
            forms: forms.collect(),
            groups: optimizer.groups()?,
        })
    }

    /// Drops gradients, and what the optimizer remembers.
    pub(crate) fn forget(&mut self, optimizer: &Optimizer) -> Result<(), Error> {
        let id = optimizer.id();
        self.engine.on_each(move |_, stage| stage.forget(id))?;
        Ok(())
    }

    /// Gives each stage what is its own, which [`Pipeline::fitting`] says is
    /// there and fits; `saved` is what the checkpoint says of local steps.
    pub(crate) fn put(
        &mut self,
        optimizer: &Optimizer,
        all: &[Portable],
        saved: Option<LocalState>,
    ) -> Result<(), Error> {
        let (id, alive) = (optimizer.id(), optimizer.alive());
        let offload = optimizer.offloads();
        let replicas = 0..self.engine.replicas();
        let alone = self.engine.train_alone();
        // Where replicas are not to train alone, all go on from the first one.
        let source = |replica| {
            saved
                .filter(|_| alone)
                .map_or(0, |own| replica % own.replicas.max(1))
        };
        let apart = saved.is_some_and(|own| own.done > 0);
        // What stages and optimizers keep must not be another replica's.
        let own = replicas.map(|replica| {
            let own = all
                .iter()
                .filter(|one| is_of(&one.role, source(replica), apart));
            own.map(Portable::plain_copy).collect::<Result<Vec<_>, _>>()
        });
        let of_replicas = own.collect::<Result<Vec<_>, _>>()?;
        let all: Arc<[_]> = of_replicas.into_iter().map(Mutex::new).collect();
        self.engine.on_each(move |_, stage| {
            let own = &all[stage.replica()];
            stage.adopt_portable(id, (&alive, offload), own)
        })?;
        Ok(())
    }

    /// Goes on as a pipeline of this seed that has done these steps.
    pub(crate) fn go_on(&mut self, draws: Draws) -> Result<(), Error> {
        let reseeded = self.engine.on_each(move |_, stage| {
            stage.reseed(draws.seed);
            Ok(())
        });
        let done = reseeded.and_then(|_| self.ties.refresh(&mut self.engine));
        self.engine.conclude(done)?;
        (self.seed, self.steps) = (draws.seed, draws.steps);
        Ok(())
    }
}

/// Whether a replica goes on from this that goes on from what `source` has saved; `apart` says
/// whether replicas had weights of their own then.
fn is_of(role: &Role, source: usize, apart: bool) -> bool {
    match role {
        Role::Replica(of, _) => *of == source,
        Role::Outer(_) => true,
        Role::Parameter | Role::Buffer => source == 0 || !apart,
        Role::Gradient | Role::Optimizer(_) => source == 0,
    }
}
