//! What a stage holds between steps, to be carried to any other partition.

use std::collections::{BTreeMap, HashMap};
use std::sync::Weak;

use parking_lot::Mutex;
use tch::Tensor;

use super::TorchStage;
use crate::torch::copies::{fill, host_copy, like};
use crate::torch::ffi;
use crate::torch::optim::{OptimizerState, Parts};
use crate::torch::rng;

/// What a tensor is to the parameter or buffer that it is named after.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    Parameter,
    Buffer,
    /// What steps have accumulated that no optimizer has used up.
    Gradient,
    /// A part of what an optimizer remembers.
    Optimizer(String),
}

impl Role {
    /// For sentences in which the name follows.
    pub(crate) fn in_words(&self) -> &'static str {
        match self {
            Self::Parameter => "the parameter",
            Self::Buffer => "the buffer",
            Self::Gradient => "a gradient of",
            Self::Optimizer(_) => "what the optimizer remembers of",
        }
    }
}

/// A tensor by its role and the name of the parameter or buffer.
#[derive(Debug)]
pub(crate) struct Portable {
    pub(crate) role: Role,
    pub(crate) name: String,
    pub(crate) tensor: Tensor,
}

impl TorchStage {
    /// Copies, in the host's memory, of all that training goes on from.
    pub(crate) fn portable(&mut self, optimizer: u64) -> anyhow::Result<Vec<Portable>> {
        self.settle()?;
        self.streams.wait_offloaded()?;
        let mut all = Vec::new();
        let mut add = |role, name: &str, tensor: &Tensor| -> anyhow::Result<()> {
            let copied = host_copy(tensor).map_err(|error| {
                anyhow::anyhow!("`{name}` cannot be copied for a checkpoint: {error}")
            })?;
            all.push(Portable {
                role,
                name: name.to_owned(),
                tensor: copied,
            });
            Ok(())
        };
        for (place, (name, parameter)) in self.parameters.iter().enumerate() {
            add(Role::Parameter, name, parameter)?;
            let gradient = parameter.grad();
            if gradient.defined() {
                add(Role::Gradient, name, &gradient)?;
            }
            if let Some((_, state)) = self.optimizers.get(&optimizer) {
                for (part, tensor) in state.parts(place) {
                    add(Role::Optimizer(part.to_owned()), name, tensor)?;
                }
            }
        }
        for (name, buffer) in &self.buffers {
            add(Role::Buffer, name, buffer)?;
        }
        Ok(all)
    }

    /// Drops gradients, and what an optimizer remembers here.
    pub(crate) fn forget(&mut self, optimizer: u64) -> anyhow::Result<()> {
        self.settle()?;
        self.optimizers.remove(&optimizer);
        Ok(self.zero_grad()?)
    }

    /// Takes what belongs to this stage out of `all` and goes on from it. Types and
    /// shapes have been checked. `alive` is whether the optimizer still is, and `offload`
    /// whether it keeps what it remembers on the host.
    pub(crate) fn adopt_portable(
        &mut self,
        optimizer: u64,
        (alive, offload): (&Weak<()>, bool),
        all: &Mutex<Vec<Portable>>,
    ) -> anyhow::Result<()> {
        let places: HashMap<&str, usize> = (self.parameters.iter().enumerate())
            .map(|(place, (name, _))| (name.as_str(), place))
            .collect();
        let buffers: HashMap<&str, &Tensor> = (self.buffers.iter())
            .map(|(name, buffer)| (name.as_str(), buffer))
            .collect();
        let mut remembered: BTreeMap<usize, Parts> = BTreeMap::new();
        let mine = |one: &mut Portable| match one.role {
            Role::Buffer => buffers.contains_key(one.name.as_str()),
            _ => places.contains_key(one.name.as_str()),
        };
        let own: Vec<Portable> = all.lock().extract_if(.., mine).collect();
        for Portable { role, name, tensor } in own {
            if role == Role::Buffer {
                fill(buffers[name.as_str()], &tensor)?;
                continue;
            }
            let place = places[name.as_str()];
            let parameter = &self.parameters[place].1;
            match role {
                Role::Parameter => fill(parameter, &tensor)?,
                Role::Gradient => ffi::set_grad(parameter, Some(&like(parameter, &tensor)?))?,
                Role::Optimizer(part) => {
                    remembered.entry(place).or_default().insert(part, tensor);
                }
                Role::Buffer => {}
            }
        }
        let new = || (Weak::clone(alive), OptimizerState::default());
        let (_, state) = self.optimizers.entry(optimizer).or_insert_with(new);
        for (place, parts) in remembered {
            let host = offload.then_some(&*self.streams);
            state.remember(place, &self.parameters[place].1, &parts, host)?;
        }
        Ok(self.streams.release_offloaded()?)
    }

    /// Draws random numbers as a model does that was built with this seed.
    pub(crate) fn reseed(&mut self, seed: u64) {
        for layer in &mut self.layers {
            layer.seed = rng::named_seed(seed, &layer.name);
        }
        self.loss_seed = rng::named_seed(seed, "loss");
    }
}
