//! All that training goes on from: copied out of the stages, and put back into
//! other stages.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tch::Kind;

use super::Pipeline;
use crate::error::Error;
use crate::optim::Optimizer;
use crate::torch::{Groups, Portable, Role};

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
    /// Copies in the host's memory, with the number of each stage whose first copy is in this
    /// process, made on the stages' threads, all at once.
    pub(crate) fn snapshot(
        &mut self,
        optimizer: &Optimizer,
    ) -> Result<Vec<(usize, Vec<Portable>)>, Error> {
        let id = optimizer.id();
        self.engine
            .on_first_replica(move |number, stage| Ok((number.index(), stage.portable(id)?)))
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
    /// there and fits.
    pub(crate) fn put(&mut self, optimizer: &Optimizer, all: Vec<Portable>) -> Result<(), Error> {
        let (id, alive) = (optimizer.id(), optimizer.alive());
        let offload = optimizer.offloads();
        let mut of_replicas = vec![all];
        while of_replicas.len() < self.engine.replicas() {
            // What stages and optimizers keep must not be another replica's.
            let more = of_replicas[0].iter().map(Portable::copy);
            of_replicas.push(more.collect::<Result<_, _>>()?);
        }
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
