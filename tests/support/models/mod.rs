//! Models in two forms with the same parameters: layers of a pipeline, and a loop over plain tch in the
//! calling thread ([`Reference`](super::reference::Reference)).
#![allow(unused_imports, reason = "every test binary uses its own part of this")]

mod images;
mod moving;
mod outputs;
mod recurrent;
mod tied;
mod transformer;

pub(crate) use images::{convnet, unet};
#[allow(unused_imports, reason = "likewise")]
pub(crate) use moving::moving;
#[allow(unused_imports, reason = "likewise")]
pub(crate) use outputs::multi_output;
#[allow(unused_imports, reason = "likewise")]
pub(crate) use recurrent::recurrent;
#[allow(unused_imports, reason = "likewise")]
pub(crate) use tied::tied;
#[allow(unused_imports, reason = "likewise")]
pub(crate) use transformer::transformer;

use std::fmt;
use std::sync::Arc;

use gpipe::tch::{Tensor, nn};
use gpipe::{Layer, Sequential, Values, layers::Context};

/// The services that a pass of either form offers to a layer.
pub(crate) trait Pass {
    fn train(&self) -> bool;
    fn stash(&self, name: &str, value: &Tensor);
    fn pop(&self, name: &str) -> Tensor;
}

impl Pass for Context {
    fn train(&self) -> bool {
        Context::train(self)
    }

    fn stash(&self, name: &str, value: &Tensor) {
        Context::stash(self, name, value).unwrap();
    }

    fn pop(&self, name: &str) -> Tensor {
        Context::pop(self, name).unwrap().unwrap()
    }
}

/// A built layer.
pub(crate) type Forward = Box<dyn Fn(&Tensor, &dyn Pass) -> Tensor>;

/// One layer, and a function that builds it at the path of its parameters.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) name: String,
    /// Path at which the plain form builds it: at another layer's path it finds that layer's parameter, to
    /// which the pipeline ties its own.
    pub(crate) home: String,
    pub(crate) build: Arc<dyn Fn(&nn::Path<'_>) -> Forward + Send + Sync>,
    stashes: Vec<&'static str>,
    pops: Vec<&'static str>,
}

/// Agreement of a model with plain gradient accumulation over the same micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plainly {
    /// The same bits.
    Exactly,
    /// Up to the order of summation: tied parameters.
    Closely,
    /// Not comparable: it draws masks that a plain model cannot draw.
    Not,
}

/// A model for tests; every one has at least eight layers.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) parts: Vec<Part>,
    pub(crate) batch: fn(i64) -> (Tensor, Tensor),
    pub(crate) loss: fn(&Tensor, &Tensor) -> Tensor,
    pub(crate) plainly: Plainly,
    /// Whether micro-batches are independent of each other and of their number, so that the whole batch gives
    /// nearly the same.
    pub(crate) whole: bool,
    ties: Vec<(&'static str, &'static str)>,
}

impl Model {
    pub(crate) fn new(
        name: &'static str,
        batch: fn(i64) -> (Tensor, Tensor),
        loss: fn(&Tensor, &Tensor) -> Tensor,
    ) -> Self {
        Self {
            name,
            parts: Vec::new(),
            batch,
            loss,
            plainly: Plainly::Exactly,
            whole: true,
            ties: Vec::new(),
        }
    }

    pub(crate) fn layer(
        mut self,
        name: impl Into<String>,
        build: impl Fn(&nn::Path<'_>) -> Forward + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        self.parts.push(Part {
            home: name.clone(),
            name,
            build: Arc::new(build),
            stashes: Vec::new(),
            pops: Vec::new(),
        });
        self
    }

    fn last(&mut self) -> &mut Part {
        self.parts.last_mut().unwrap()
    }

    pub(crate) fn stashes(mut self, name: &'static str) -> Self {
        self.last().stashes.push(name);
        self
    }

    pub(crate) fn pops(mut self, name: &'static str) -> Self {
        self.last().pops.push(name);
        self
    }

    /// Ties `copy`, a parameter of the last layer, to `owner` of the layer `home`.
    pub(crate) fn tied(
        mut self,
        home: &'static str,
        owner: &'static str,
        copy: &'static str,
    ) -> Self {
        home.clone_into(&mut self.last().home);
        self.ties.push((owner, copy));
        self
    }

    /// Names of tied parameters: the owner's, the copy's.
    pub(crate) fn ties(&self) -> &[(&'static str, &'static str)] {
        &self.ties
    }

    /// The same model with a separate parameter at each place.
    pub(crate) fn untied(mut self) -> Self {
        self.ties.clear();
        for part in &mut self.parts {
            part.home.clone_from(&part.name);
        }
        self
    }

    /// The form for a pipeline.
    pub(crate) fn sequential(&self) -> Sequential {
        let mut model = Sequential::new();
        for part in &self.parts {
            let build = Arc::clone(&part.build);
            model = model.layer(&part.name, move |path| InPipeline(build(path)));
            for name in &part.stashes {
                model = model.stashes(*name);
            }
            for name in &part.pops {
                model = model.pops(*name);
            }
        }
        self.ties
            .iter()
            .fold(model, |model, (owner, copy)| model.tie(*owner, *copy))
    }
}

/// A chain of plain modules as a model.
pub(crate) fn from_chain(
    name: &'static str,
    chain: &super::Chain,
    batch: fn(i64) -> (Tensor, Tensor),
) -> Model {
    let model = Model::new(name, batch, super::cross_entropy);
    chain.iter().fold(model, |model, &(name, build)| {
        model.layer(name, move |path| {
            let module = build(path);
            Box::new(move |x, pass| module.forward_t(x, pass.train()))
        })
    })
}

/// Eight layers with parameters of different sizes.
pub(crate) fn mlp() -> Model {
    from_chain("mlp", &super::mlp(), super::mlp_batch)
}

struct InPipeline(Forward);

impl fmt::Debug for InPipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InPipeline")
    }
}

impl Layer for InPipeline {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        Ok(self.0(&inputs.into_one()?, ctx).into())
    }

    fn graph_safe(&self) -> bool {
        true
    }
}

/// tch's own linear layer.
fn linear(path: &nn::Path<'_>, inputs: i64, outputs: i64) -> nn::Linear {
    nn::linear(path, inputs, outputs, nn::LinearConfig::default())
}

/// A weight scaled so that its size does not increase the numbers.
fn weight(path: &nn::Path<'_>, name: &str, shape: &[i64]) -> Tensor {
    let fan_in = shape.last().copied().unwrap_or(1);
    path.randn(name, shape, 0.0, 1.0 / (fan_in as f64).sqrt())
}

/// Cross entropy over all positions of `[sample, time, class]`.
fn token_loss(out: &Tensor, y: &Tensor) -> Tensor {
    let classes = out.size()[2];
    out.reshape([-1, classes])
        .cross_entropy_for_logits(&y.reshape([-1]))
}
