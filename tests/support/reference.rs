//! Reference for a pipeline's numbers: gradient accumulation in the calling thread, with plain tch between
//! the input and the gradients.

use std::cell::RefCell;
use std::collections::HashMap;

use gpipe::tch::{self, Device, Tensor, nn};
use gpipe::{Optimizer, Pipeline, Sequential, optim::AdamW};

use super::models::{Forward, Model, Pass};
use super::{gradients, snapshot};

/// Tensors by name, in the order of the names.
pub(crate) type Named = Vec<(String, Tensor)>;

/// Numbers that are compared bit for bit.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Output of inference before the first step.
    pub(crate) output: Tensor,
    /// Loss of each step.
    pub(crate) losses: Vec<f64>,
    /// Gradients after the first step.
    pub(crate) gradients: Named,
    /// Input gradient of the first step, if the input is floating.
    pub(crate) input_gradient: Option<Tensor>,
    /// Parameters and buffers after the last update.
    pub(crate) after: Named,
}

/// Sizes of micro-batches: as even as possible, the larger ones first.
pub(crate) fn sizes(samples: i64, micro_batches: usize) -> Vec<i64> {
    let count = (micro_batches as i64).min(samples);
    (0..count)
        .map(|i| samples / count + i64::from(i < samples % count))
        .collect()
}

/// The updates of every comparison; large enough to move every weight.
pub(crate) fn optimizer() -> Optimizer {
    Optimizer::new(AdamW {
        lr: 1e-2,
        ..AdamW::default()
    })
}

/// The batch's input for the first step: it requires a gradient if its type allows.
pub(crate) fn asking(x: &Tensor) -> Tensor {
    x.copy().set_requires_grad(x.is_floating_point())
}

/// A model's plain form.
#[derive(Debug)]
pub(crate) struct Reference {
    store: nn::VarStore,
    layers: Layers,
    loss: fn(&Tensor, &Tensor) -> Tensor,
}

struct Layers(Vec<Forward>);

impl std::fmt::Debug for Layers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} layers", self.0.len())
    }
}

/// A pass without a pipeline.
struct PlainPass {
    train: bool,
    skips: RefCell<HashMap<String, Tensor>>,
}

impl Pass for PlainPass {
    fn train(&self) -> bool {
        self.train
    }

    fn stash(&self, name: &str, value: &Tensor) {
        let value = value.shallow_clone();
        self.skips.borrow_mut().insert(name.to_owned(), value);
    }

    fn pop(&self, name: &str) -> Tensor {
        self.skips.borrow()[name].shallow_clone()
    }
}

impl Reference {
    /// Builds the model with these parameters and buffers.
    pub(crate) fn new(model: &Model, values: &[(String, Tensor)]) -> Self {
        let store = nn::VarStore::new(Device::Cpu);
        let layers = model.parts.iter().map(|part| {
            let path = part
                .home
                .split('.')
                .fold(store.root(), |path, name| path / name);
            (part.build)(&path)
        });
        let plain = Self {
            layers: Layers(layers.collect()),
            loss: model.loss,
            store,
        };
        plain.load(values);
        plain
    }

    fn load(&self, values: &[(String, Tensor)]) {
        let mut values: HashMap<_, _> = values.iter().map(|(name, value)| (name, value)).collect();
        tch::no_grad(|| {
            for (name, mut tensor) in self.variables() {
                let value = values
                    .remove(&name)
                    .unwrap_or_else(|| panic!("no `{name}`"));
                tensor.copy_(value);
            }
        });
        assert!(values.is_empty(), "nobody has {:?}", values.keys());
    }

    pub(crate) fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let pass = PlainPass {
            train,
            skips: RefCell::default(),
        };
        let layers = self.layers.0.iter();
        layers.fold(x.shallow_clone(), |x, layer| layer(&x, &pass))
    }

    /// Plain gradient accumulation over micro-batches of these sizes; returns the loss.
    pub(crate) fn accumulate(&self, x: &Tensor, y: &Tensor, sizes: &[i64]) -> f64 {
        let samples: i64 = sizes.iter().sum();
        let (mut start, mut total) = (0, 0.0);
        for &size in sizes {
            let (x, y) = (x.narrow(0, start, size), y.narrow(0, start, size));
            let share = size as f64 / samples as f64;
            let loss = (self.loss)(&self.forward(&x, true), &y);
            (&loss * share).backward();
            total += loss.double_value(&[]) * share;
            start += size;
        }
        total
    }

    /// The separate gradients of each of these micro-batches, by name; absent ones left out.
    pub(crate) fn of_each(&self, x: &Tensor, y: &Tensor, sizes: &[i64]) -> Vec<Named> {
        let samples: i64 = sizes.iter().sum();
        let variables = self.variables().into_iter();
        let (names, own): (Vec<_>, Vec<_>) = variables.filter(|(_, t)| t.requires_grad()).unzip();
        let rows = x.split_with_sizes(sizes, 0).into_iter();
        let rows = rows.zip(y.split_with_sizes(sizes, 0)).zip(sizes);
        let gradients = rows.map(|((x, y), size)| {
            let share = *size as f64 / samples as f64;
            let loss = (self.loss)(&self.forward(&x, true), &y) * share;
            let gradients = Tensor::run_backward(&[loss], &own, false, false);
            let named = names.iter().cloned().zip(gradients);
            named.filter(|(_, gradient)| gradient.defined()).collect()
        });
        gradients.collect()
    }

    /// Gradients by name; absent ones left out.
    pub(crate) fn gradients(&self) -> Named {
        by_name(
            self.variables()
                .into_iter()
                .filter(|(_, tensor)| tensor.requires_grad() && tensor.grad().defined())
                .map(|(name, tensor)| (name, tensor.grad().copy())),
        )
    }

    fn variables(&self) -> Named {
        by_name(self.store.variables().into_iter())
    }

    fn zero_grad(&self) {
        for (_, mut tensor) in self.variables() {
            tensor.zero_grad();
        }
    }

    /// All numbers to compare a pipeline with, over `steps` updates.
    pub(crate) fn numbers(&self, x: &Tensor, y: &Tensor, sizes: &[i64], steps: usize) -> Numbers {
        let parts = x.split_with_sizes(sizes, 0);
        let outputs: Vec<_> = parts
            .iter()
            .map(|part| tch::no_grad(|| self.forward(part, false)))
            .collect();
        let asked = asking(x);
        let mut losses = vec![self.accumulate(&asked, y, sizes)];
        let gradients = self.gradients();
        let mut updater = Updater::new(&self.variables());
        self.load(&updater.step(&self.variables(), &gradients));
        for _ in 1..steps {
            self.zero_grad();
            losses.push(self.accumulate(x, y, sizes));
            self.load(&updater.step(&self.variables(), &self.gradients()));
        }
        Numbers {
            output: Tensor::cat(&outputs, 0),
            losses,
            gradients,
            input_gradient: asked.requires_grad().then(|| asked.grad()),
            after: by_name(
                self.variables()
                    .into_iter()
                    .map(|(n, t)| (n, t.detach().copy())),
            ),
        }
    }
}

/// The same numbers from a pipeline that has not made a step yet. Only the first step requires the input's
/// gradient.
pub(crate) fn pipeline_numbers(
    pipe: &mut Pipeline,
    model: &Model,
    (x, y): (&Tensor, &Tensor),
    steps: usize,
) -> Result<Numbers, gpipe::Error> {
    let output = pipe.forward(x)?;
    let mut report = pipe.train_step(asking(x), y, model.loss)?;
    let input_gradient = report
        .input_gradient
        .take()
        .map(|values| values.into_one().unwrap());
    let gradients = copied(gradients(pipe));
    let mut losses = vec![report.read()?.loss];
    let mut optimizer = optimizer();
    optimizer.step(pipe)?;
    for _ in 1..steps {
        losses.push(pipe.train_step(x, y, model.loss)?.read()?.loss);
        optimizer.step(pipe)?;
    }
    Ok(Numbers {
        output,
        losses,
        gradients,
        input_gradient,
        after: snapshot(pipe),
    })
}

fn copied(list: Named) -> Named {
    list.into_iter().map(|(n, t)| (n, t.copy())).collect()
}

fn by_name(all: impl Iterator<Item = (String, Tensor)>) -> Named {
    let mut all: Named = all.collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Applies given gradients with a pipeline's optimizer: a pipeline of one layer that has the parameters and
/// is never run.
struct Updater {
    pipe: Pipeline,
    optimizer: Optimizer,
}

impl Updater {
    fn new(variables: &[(String, Tensor)]) -> Self {
        let shapes: Vec<_> = variables
            .iter()
            .map(|(name, t)| (name.replace('.', "/"), t.size(), t.requires_grad()))
            .collect();
        let model = Sequential::new().layer("all", move |path| {
            for (name, shape, trainable) in &shapes {
                let _ = path.add(name, Tensor::zeros(shape, tch::kind::FLOAT_CPU), *trainable);
            }
            nn::func(Tensor::shallow_clone)
        });
        Self {
            pipe: Pipeline::builder(model)
                .threads_per_stage(1)
                .build()
                .unwrap(),
            optimizer: optimizer(),
        }
    }

    /// The values after one update.
    fn step(&mut self, values: &[(String, Tensor)], gradients: &[(String, Tensor)]) -> Named {
        let named = |list: &[(String, Tensor)]| -> Named {
            let all = list.iter();
            all.map(|(name, tensor)| (format!("all.{}", name.replace('.', "/")), tensor.detach()))
                .collect()
        };
        self.pipe.load(&named(values)).unwrap();
        let own: HashMap<_, _> = self.pipe.parameters().unwrap().into_iter().collect();
        for (name, gradient) in named(gradients) {
            // tch's only way to set a given gradient: the backward of a product with it.
            (&own[&name] * gradient).sum(None).backward();
        }
        self.optimizer.step(&mut self.pipe).unwrap();
        let after = snapshot(&mut self.pipe);
        by_name(
            after
                .into_iter()
                .map(|(name, tensor)| (name.trim_start_matches("all.").replace('/', "."), tensor)),
        )
    }
}
