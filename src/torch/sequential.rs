//! A model as a list of layer builders.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use tch::{Device, Tensor, nn};

use super::error::TorchError;
use super::ffi::RandomScope;
use super::layer::Layer;
use super::out_of_memory::OutOfMemory;
use super::rng;
use super::skips::{self, Declared, Skip};

type Build = dyn Fn(&nn::Path<'_>) -> anyhow::Result<Box<dyn Layer>> + Send + Sync;

/// A chain of layers that have names and are not built yet.
///
/// Each layer is built on the device that will own it, so neither a device nor
/// the host ever holds the whole model. Names and initial values of parameters
/// do not depend on how the chain is cut: a parameter is called
/// `"{layer name}.{name given by the layer}"`, and each layer draws its initial
/// values from a generator seeded with the layer's name.
///
/// ```
/// use gpipe::{Sequential, tch::nn};
///
/// let model = Sequential::new()
///     .layer("embed", |p| nn::embedding(p, 100, 16, Default::default()))
///     .layers("hidden", 4, |p, _i| nn::linear(p, 16, 16, Default::default()))
///     .layer("head", |p| nn::linear(p, 16, 100, Default::default()));
/// assert_eq!(model.len(), 6);
/// assert_eq!(model.names().nth(1), Some("hidden.0"));
/// ```
#[doc(alias = "nn.Sequential")]
#[derive(Clone, Default)]
pub struct Sequential {
    layers: Vec<LayerBuilder>,
    ties: Vec<Tie>,
}

/// Two names of one parameter (weight tying).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tie {
    /// The name that the user sees.
    pub(crate) owner: String,
    /// The parameter that is replaced by it.
    pub(crate) copy: String,
}

/// One layer of a [`Sequential`]: its name and builder.
#[derive(Clone)]
pub(crate) struct LayerBuilder {
    pub(super) name: String,
    build: Arc<Build>,
    declared: Declared,
    /// Full names of its variables, if they do not begin with the layer's name.
    whole_names: Option<Arc<[String]>>,
}

impl Sequential {
    /// A chain of no layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a layer, built by `build` at the path of its parameters.
    ///
    /// Names must be unique; [`Pipeline::new`](crate::Pipeline::new) says so if they are not.
    #[must_use]
    pub fn layer<L, F>(self, name: impl Into<String>, build: F) -> Self
    where
        L: Layer + 'static,
        F: Fn(&nn::Path<'_>) -> L + Send + Sync + 'static,
    {
        self.try_layer(name, move |path| Ok(build(path)))
    }

    /// Appends a layer whose building can fail.
    #[must_use]
    pub fn try_layer<L, F>(mut self, name: impl Into<String>, build: F) -> Self
    where
        L: Layer + 'static,
        F: Fn(&nn::Path<'_>) -> anyhow::Result<L> + Send + Sync + 'static,
    {
        let build = move |path: &nn::Path<'_>| -> anyhow::Result<Box<dyn Layer>> {
            Ok(Box::new(build(path)?))
        };
        self.layers.push(LayerBuilder {
            name: name.into(),
            build: Arc::new(build),
            declared: Declared::default(),
            whole_names: None,
        });
        self
    }

    /// Declares that the layer appended last stashes a value called `name`
    /// ([`Context::stash`](crate::Context::stash)), which layers further on pop.
    ///
    /// It bypasses the stages between: it is sent straight from the stashing stage to each
    /// popping one, and its gradient straight back.
    ///
    /// # Panics
    /// There is no layer yet.
    #[must_use]
    pub fn stashes(mut self, name: impl Into<String>) -> Self {
        self.last().stashes.push(name.into());
        self
    }

    /// Declares that the layer appended last pops the value called `name`
    /// ([`Context::pop`](crate::Context::pop)), which an earlier layer stashes.
    ///
    /// Several layers may pop the same value; their gradients are added.
    ///
    /// # Panics
    /// There is no layer yet.
    #[must_use]
    pub fn pops(mut self, name: impl Into<String>) -> Self {
        self.last().pops.push(name.into());
        self
    }

    fn last(&mut self) -> &mut Declared {
        match self.layers.last_mut() {
            Some(layer) => &mut layer.declared,
            None => panic!("`stashes` and `pops` belong to a layer: append one first"),
        }
    }

    /// Says that the layer appended last gives its variables whole names, these: the layer's
    /// own name is not put before them.
    #[must_use]
    pub fn whole_names(mut self, names: Vec<String>) -> Self {
        if let Some(layer) = self.layers.last_mut() {
            layer.whole_names = Some(names.into());
        }
        self
    }

    /// Makes two parameters of equal shape one: `copy` becomes another place of
    /// use of `owner`, such as `.tie("embed.weight", "head.weight")`.
    ///
    /// The user sees `owner` alone. Each place of use accumulates its own gradient;
    /// at the end of a step they are added in the order of the places, so that the
    /// sum does not depend on where the model is cut. Names that do not exist are
    /// an error when the pipeline is built.
    #[doc(alias = "weight tying")]
    #[must_use]
    pub fn tie(mut self, owner: impl Into<String>, copy: impl Into<String>) -> Self {
        self.ties.push(Tie {
            owner: owner.into(),
            copy: copy.into(),
        });
        self
    }

    /// Appends `count` layers named `name.0`, `name.1`, …; `build` is given the number.
    #[must_use]
    pub fn layers<L, F>(mut self, name: &str, count: usize, build: F) -> Self
    where
        L: Layer + 'static,
        F: Fn(&nn::Path<'_>, usize) -> L + Send + Sync + 'static,
    {
        let build = Arc::new(build);
        for number in 0..count {
            let build = Arc::clone(&build);
            self = self.layer(format!("{name}.{number}"), move |path| build(path, number));
        }
        self
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layers' names in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.layers.iter().map(|layer| layer.name.as_str())
    }

    pub(crate) fn builders(&self) -> &[LayerBuilder] {
        &self.layers
    }

    pub(crate) fn ties(&self) -> &[Tie] {
        &self.ties
    }

    /// Connects each stashed value to the layer that pops it.
    ///
    /// # Errors
    /// Stashes and pops that do not match, in words.
    pub(crate) fn skips(&self) -> Result<Vec<Skip>, String> {
        skips::connect(
            self.layers
                .iter()
                .map(|layer| (layer.name.as_str(), &layer.declared)),
        )
    }

    /// The first name that stands twice.
    pub(crate) fn duplicate_name(&self) -> Option<&str> {
        let mut seen = HashSet::new();
        self.names().find(|name| !seen.insert(*name))
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sequential")
            .field(&self.names().collect::<Vec<_>>())
            .finish()
    }
}

impl fmt::Debug for LayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerBuilder")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A layer with its parameters, on its device.
#[derive(Debug)]
pub(crate) struct BuiltLayer {
    pub(crate) name: String,
    pub(crate) layer: Box<dyn Layer>,
    /// Seed of this layer in this run, from [`rng::named_seed`].
    pub(crate) seed: u64,
    pub(crate) declared: Declared,
    has_whole_names: bool,
    store: nn::VarStore,
}

impl LayerBuilder {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the length of the variable name's prefix that belongs to the layer; `None` if the
    /// variable is not the layer's. (Of several layers, the one with the longest owns it.)
    pub(crate) fn owns(&self, variable: &str) -> Option<usize> {
        if let Some(names) = &self.whole_names {
            return (names.iter()).find_map(|own| (own == variable).then_some(own.len()));
        }
        let rest = variable.strip_prefix(self.name.as_str())?;
        rest.starts_with('.').then_some(self.name.len())
    }

    /// A variable's full name, from the one in the layer.
    pub(super) fn full_name(&self, own: &str) -> String {
        full_name(&self.name, self.whole_names.is_some(), own)
    }

    /// Builds the layer on `device`, with the initial values that `seed` and the
    /// layer's name stand for, the same on every kind of device.
    pub(crate) fn build(&self, device: Device, seed: u64) -> anyhow::Result<BuiltLayer> {
        let seed = rng::named_seed(seed, &self.name);
        let (mut store, layer) = self.draw(device, seed)?;
        if device != Device::Cpu && !super::only_time_passes() {
            // A CUDA generator draws other numbers from the same seed: take the CPU's.
            let (values, _) = self.draw(Device::Cpu, seed)?;
            store.copy(&values).map_err(TorchError::from)?;
        }
        Ok(BuiltLayer {
            name: self.name.clone(),
            layer,
            seed,
            declared: self.declared.clone(),
            has_whole_names: self.whole_names.is_some(),
            store,
        })
    }

    fn draw(&self, device: Device, seed: u64) -> anyhow::Result<(nn::VarStore, Box<dyn Layer>)> {
        let _seeded = RandomScope::open(seed)?;
        let store = nn::VarStore::new(device);
        let layer = self.call(&store.root());
        let layer = layer.map_err(|error| OutOfMemory::explain(device, error))?;
        Ok((store, layer))
    }

    /// Calls the user's builder.
    pub(super) fn call(&self, path: &nn::Path<'_>) -> anyhow::Result<Box<dyn Layer>> {
        super::caught(|| (self.build)(path))
            .map_err(|error| error.context(format!("layer `{}` cannot be built", self.name)))
    }
}

impl BuiltLayer {
    /// Returns whether a variable, given by its full name, is this layer's.
    pub(crate) fn owns(&self, variable: &str) -> bool {
        if self.has_whole_names {
            return self.store.variables().contains_key(variable);
        }
        let rest = variable.strip_prefix(self.name.as_str());
        rest.is_some_and(|rest| rest.starts_with('.'))
    }

    /// All variables with full names, by name: parameters and buffers.
    pub(crate) fn variables(&self) -> Vec<(String, Tensor)> {
        let mut variables: Vec<_> = self
            .store
            .variables()
            .into_iter()
            .map(|(name, tensor)| (full_name(&self.name, self.has_whole_names, &name), tensor))
            .collect();
        variables.sort_by(|a, b| a.0.cmp(&b.0));
        variables
    }

    /// The variables that are trained, frozen ones among them.
    pub(crate) fn parameters(&self) -> Vec<(String, Tensor)> {
        self.part(true)
    }

    /// The variables that layers change in a forward pass, such as running statistics.
    pub(crate) fn buffers(&self) -> Vec<(String, Tensor)> {
        self.part(false)
    }

    fn part(&self, trainable: bool) -> Vec<(String, Tensor)> {
        let trained = self.store.trainable_variables();
        let is_trained = |tensor: &Tensor| {
            tensor.requires_grad()
                || trained
                    .iter()
                    .any(|own| own.data_ptr() == tensor.data_ptr())
        };
        let mut variables = self.variables();
        variables.retain(|(_, tensor)| is_trained(tensor) == trainable);
        variables
    }
}

fn full_name(layer: &str, is_whole: bool, own: &str) -> String {
    if is_whole {
        return own.to_owned();
    }
    format!("{layer}.{own}")
}

/// Bytes of a tensor's elements.
pub(crate) fn bytes(tensor: &Tensor) -> u64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64
}
