//! State of training: copied out of the stages, and put back into other stages.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tch::Kind;

use super::Pipeline;
use super::local_steps::LocalState;
use crate::error::Error;
use crate::optim::Optimizer;
use crate::{Groups, Portable, Role};

/// Owner of the tensors in a checkpoint shard: replica 0 for tensors that all copies of a stage
/// share, or the replica whose copy alone has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShardOf {
    /// Number of the stage.
    pub stage: usize,
    /// Number of the replica.
    pub replica: usize,
}

impl ShardOf {
    /// Refers to the tensors that all copies of a stage have.
    pub fn stage(stage: usize) -> Self {
        Self { stage, replica: 0 }
    }
}

/// Random state of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draws {
    /// Seed of the pipeline.
    pub seed: u64,
    /// Training steps done.
    pub steps: u64,
}

/// A parameter's or buffer's type and shape.
pub type Form = (Kind, Vec<i64>);

/// State that a pipeline and its optimizer can resume from.
#[derive(Debug)]
pub struct Fitting {
    /// Parameters and buffers by role and name.
    pub forms: BTreeMap<(Role, String), Form>,
    /// Parameter groups of the optimizer.
    pub groups: Groups,
}

impl Pipeline {
    /// Copies state to host memory, for each copy of a stage in this process with state that no
    /// copy before it has; made on the stages' threads, all at once.
    pub fn snapshot(
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

    /// Returns the random state of the next step's layers.
    pub fn draws(&self) -> Draws {
        Draws {
            seed: self.seed,
            steps: self.steps,
        }
    }

    /// Types and shapes that a snapshot must have to be restored here.
    ///
    /// # Errors
    /// A stage fails.
    pub fn fitting(&mut self, optimizer: &Optimizer) -> Result<Fitting, Error> {
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

    /// Drops gradients and optimizer state.
    pub fn forget(&mut self, optimizer: &Optimizer) -> Result<(), Error> {
        let id = optimizer.id();
        self.engine.on_each(move |_, stage| stage.forget(id))?;
        Ok(())
    }

    /// Gives each stage its own state, which [`Pipeline::fitting`] has checked; `saved` is the
    /// checkpoint's progress of local steps.
    pub fn put(
        &mut self,
        optimizer: &Optimizer,
        all: &[Portable],
        saved: Option<LocalState>,
    ) -> Result<(), Error> {
        let (id, alive) = (optimizer.id(), optimizer.alive());
        let offload = optimizer.offloads();
        let replicas = 0..self.engine.replicas();
        let alone = self.engine.train_alone();
        // Unless replicas train alone, all resume from the first one.
        let source = |replica| {
            saved
                .filter(|_| alone)
                .map_or(0, |own| replica % own.replicas.max(1))
        };
        let apart = saved.is_some_and(|own| own.done > 0);
        // Replicas must not share the tensors that stages and optimizers keep.
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

    /// Continues as a pipeline with this seed after these steps.
    pub fn go_on(&mut self, draws: Draws) -> Result<(), Error> {
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

/// Returns whether state with this role belongs to a replica that resumes from `source`; `apart`
/// says whether the replicas' weights differed when it was saved.
fn is_of(role: &Role, source: usize, apart: bool) -> bool {
    match role {
        Role::Replica(of, _) => *of == source,
        Role::Outer(_) => true,
        Role::Parameter | Role::Buffer => source == 0 || !apart,
        Role::Gradient | Role::Optimizer(_) => source == 0,
    }
}
