//! Variables of a model, without their values.

use tch::{Device, Kind, nn};

use super::error::TorchError;
use super::ffi::{RandomScope, Weightless};
use super::sequential::{LayerBuilder, Sequential};

/// A parameter or a buffer of a layer that is not built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    name: String,
    shape: Vec<i64>,
    kind: Kind,
    parameter: bool,
}

impl Variable {
    /// Returns its full name, including the layer's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its shape.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The kind of its elements.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns whether it is trained (a parameter); otherwise it is a buffer.
    pub fn is_parameter(&self) -> bool {
        self.parameter
    }

    /// The number of its elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64
    }

    /// The bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.kind.elt_size_in_bytes() as u64
    }
}

impl Sequential {
    /// Every layer's variables by name, in the order of the layers.
    ///
    /// Each layer's builder is called, but no memory is taken for the weights and no
    /// initial value is computed: on this thread, tensors made on a device that is
    /// named (as tch's `nn` does) have a shape only while it runs. A builder that
    /// cannot do without values (it reads a weight, say; where that panics, the panic
    /// is caught) is called again and builds its layer on the CPU, one layer at a
    /// time. Builders must not keep tensors of one call for another.
    ///
    /// # Errors
    /// A layer cannot be built.
    pub fn variables(&self) -> anyhow::Result<Vec<Vec<Variable>>> {
        self.builders().iter().map(LayerBuilder::describe).collect()
    }

    /// Bytes of parameters and buffers of each layer, in order; takes no memory for
    /// them (see [`Sequential::variables`]).
    ///
    /// # Errors
    /// A layer cannot be built.
    pub fn parameter_bytes(&self) -> anyhow::Result<Vec<u64>> {
        let layers = self.variables()?;
        let bytes = |layer: &Vec<Variable>| layer.iter().map(Variable::bytes).sum();
        Ok(layers.iter().map(bytes).collect())
    }

    /// Counts the model's parameters, tied ones once; allocates no memory for them (see
    /// [`Sequential::variables`]).
    ///
    /// # Errors
    /// A layer cannot be built.
    pub fn parameter_count(&self) -> anyhow::Result<u64> {
        let all = self.distinct_variables()?;
        let parameters = all.iter().filter(|variable| variable.parameter);
        Ok(parameters.map(Variable::elements).sum())
    }

    /// Returns all variables, tied ones once.
    pub fn distinct_variables(&self) -> anyhow::Result<Vec<Variable>> {
        let mut all: Vec<_> = self.variables()?.into_iter().flatten().collect();
        all.retain(|variable| {
            let mut ties = self.ties().iter();
            ties.all(|tie| tie.copy != variable.name)
        });
        Ok(all)
    }
}

impl LayerBuilder {
    fn describe(&self) -> anyhow::Result<Vec<Variable>> {
        // If the builder draws numbers after all, the caller's generators must not change.
        let _seeded = RandomScope::open(0)?;
        let weightless = || {
            let _scope = Weightless::open()?;
            self.variables_of_a_build()
        };
        weightless().or_else(|_| self.variables_of_a_build())
    }

    fn variables_of_a_build(&self) -> anyhow::Result<Vec<Variable>> {
        let store = nn::VarStore::new(Device::Cpu);
        // The layer itself is dropped here.
        let _layer = self.call(&store.root())?;
        for frozen in store.trainable_variables() {
            // A layer may have been built frozen: still a parameter.
            let _ = frozen.f_set_requires_grad(true).map_err(TorchError::from)?;
        }
        let mut variables: Vec<Variable> = store
            .variables()
            .into_iter()
            .map(|(name, tensor)| Variable {
                name: self.full_name(&name),
                shape: tensor.size(),
                kind: tensor.kind(),
                parameter: tensor.requires_grad(),
            })
            .collect();
        variables.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(variables)
    }
}
