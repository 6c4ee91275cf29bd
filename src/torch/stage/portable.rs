//! State of a stage between steps, portable to any other partition.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use tch::Tensor;

use crate::copies::{fill, host_copy, like};
use crate::error::TorchError;
use crate::ffi;
use crate::optim::{OptimizerState, Parts};

/// Role of a tensor for the parameter or buffer that it is named after.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A trained tensor.
    Parameter,
    /// A tensor of the model that is not trained.
    Buffer,
    /// Accumulated gradient that no optimizer has used.
    Gradient,
    /// A part of an optimizer's state.
    Optimizer(String),
    /// A part of the outer step's state of replicas that train alone.
    Outer(String),
    /// State that only a replica other than the first has.
    Replica(usize, Box<Role>),
}

impl Role {
    /// For sentences in which the name follows.
    pub fn in_words(&self) -> &'static str {
        match self {
            Self::Parameter => "the parameter",
            Self::Buffer => "the buffer",
            Self::Gradient => "a gradient of",
            Self::Optimizer(_) => "what the optimizer remembers of",
            Self::Outer(_) => "what the outer step remembers of",
            Self::Replica(_, own) => own.in_words(),
        }
    }

    /// The role, in whatever replica.
    pub fn plain(&self) -> &Self {
        match self {
            Self::Replica(_, own) => own.plain(),
            own => own,
        }
    }
}

/// A tensor by its role and the name of the parameter or buffer.
#[derive(Debug)]
pub struct Portable {
    /// Role of the tensor for the parameter or buffer.
    pub role: Role,
    /// Name of the parameter or buffer.
    pub name: String,
    /// Its values, in the host's memory.
    pub tensor: Tensor,
}

impl Portable {
    /// Copies it to new memory, without the replica.
    pub(crate) fn plain_copy(&self) -> Result<Self, TorchError> {
        Ok(Self {
            role: self.role.plain().clone(),
            name: self.name.clone(),
            tensor: host_copy(&self.tensor)?,
        })
    }
}

/// Copies, in the host's memory, of everything that training needs to resume: what belongs to the
/// parameters that are `owned`, and on the `first` copy of the stage what all copies have.
#[doc(alias = "state_dict")]
pub(super) fn snapshot(
    parameters: &[(String, Tensor)],
    buffers: &[(String, Tensor)],
    state: Option<&OptimizerState>,
    (first, owned): (bool, &[bool]),
) -> anyhow::Result<Vec<Portable>> {
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
    for (place, (name, parameter)) in parameters.iter().enumerate() {
        if first {
            add(Role::Parameter, name, parameter)?;
        }
        if !owned[place] {
            continue;
        }
        let gradient = parameter.grad();
        if gradient.defined() {
            add(Role::Gradient, name, &gradient)?;
        }
        if let Some(state) = state {
            for (part, tensor) in state.parts(place) {
                add(Role::Optimizer(part.to_owned()), name, tensor)?;
            }
        }
    }
    for (name, buffer) in buffers.iter().filter(|_| first) {
        add(Role::Buffer, name, buffer)?;
    }
    Ok(all)
}

/// Marks state that only a replica other than the first has.
pub(super) fn of_replica(replica: usize, all: Vec<Portable>) -> Vec<Portable> {
    let own = |one: Portable| Portable {
        role: Role::Replica(replica, Box::new(one.role)),
        ..one
    };
    all.into_iter().map(own).collect()
}

/// State of parameters, by their indices.
type Remembered = BTreeMap<usize, Parts>;

/// Takes the tensors of these parameters and buffers out of `all` and copies them. Types and shapes
/// have been checked. Returns the optimizer state, by the parameters' indices, of the `owned` ones,
/// which alone get their gradients; and the same for the outer step.
#[doc(alias = "load_state_dict")]
pub(super) fn restore(
    parameters: &[(String, Tensor)],
    buffers: &[(String, Tensor)],
    owned: &[bool],
    all: &Mutex<Vec<Portable>>,
) -> anyhow::Result<(Remembered, Remembered)> {
    let places: HashMap<&str, usize> = (parameters.iter().enumerate())
        .map(|(place, (name, _))| (name.as_str(), place))
        .collect();
    let buffers: HashMap<&str, &Tensor> = (buffers.iter())
        .map(|(name, buffer)| (name.as_str(), buffer))
        .collect();
    let mine = |one: &mut Portable| match one.role {
        Role::Buffer => buffers.contains_key(one.name.as_str()),
        _ => places.contains_key(one.name.as_str()),
    };
    let own: Vec<Portable> = all.lock().extract_if(.., mine).collect();
    let (mut remembered, mut outer) = (Remembered::new(), Remembered::new());
    for Portable { role, name, tensor } in own {
        if role == Role::Buffer {
            fill(buffers[name.as_str()], &tensor)?;
            continue;
        }
        let place = places[name.as_str()];
        let parameter = &parameters[place].1;
        let owned = owned[place];
        match role {
            Role::Gradient | Role::Optimizer(_) if !owned => {}
            Role::Parameter => fill(parameter, &tensor)?,
            Role::Gradient => ffi::set_grad(parameter, Some(&like(parameter, &tensor)?))?,
            Role::Optimizer(part) => {
                remembered.entry(place).or_default().insert(part, tensor);
            }
            Role::Outer(part) => {
                outer.entry(place).or_default().insert(part, tensor);
            }
            // The caller has removed the replica.
            Role::Buffer | Role::Replica(..) => {}
        }
    }
    Ok((remembered, outer))
}
