//! Models as lists of closures, run by a pipeline and by plain tch.

use gpipe::tch::{self, Device, Tensor, nn};
use gpipe::{Pipeline, Sequential, Values, layers::Context};

use crate::support::everywhere::{Closure, batch8, everywhere};
use crate::support::{assert_same_bits, cross_entropy, gradients, single_threaded};

/// A layer's body, with its linear layer (8 to 8).
pub(crate) type Body = fn(Values, &nn::Linear) -> anyhow::Result<Values>;

/// Names and bodies of layers.
pub(crate) type Parts = [(&'static str, Body)];

fn linear(path: &nn::Path<'_>) -> nn::Linear {
    nn::linear(path, 8, 8, nn::LinearConfig::default())
}

pub(crate) fn sequential(parts: &Parts) -> Sequential {
    parts
        .iter()
        .fold(Sequential::new(), |model, &(name, body)| {
            model.layer(name, move |path| {
                let linear = linear(path);
                Closure(move |inputs: Values, _: &Context| body(inputs, &linear))
            })
        })
}

/// The same layers one after the other, without the library.
struct Plain {
    store: nn::VarStore,
    layers: Vec<(Body, nn::Linear)>,
}

impl Plain {
    fn new(parts: &Parts, pipe: &mut Pipeline) -> Self {
        let mut store = nn::VarStore::new(Device::Cpu);
        let root = store.root();
        let layers = parts
            .iter()
            .map(|&(name, body)| (body, linear(&(&root / name))));
        let layers = layers.collect();
        for (name, value) in pipe.parameters().unwrap() {
            let mut variables = store.variables();
            tch::no_grad(|| variables.get_mut(&name).unwrap().copy_(&value));
        }
        store.unfreeze();
        Self { store, layers }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let layers = self.layers.iter();
        let run = |values, (body, linear): &(Body, nn::Linear)| body(values, linear).unwrap();
        // The layers write to their inputs.
        let values = layers.fold(Values::from(x.copy()), run);
        values.into_one().unwrap()
    }

    /// The loss and the gradients of micro-batches of these sizes.
    fn accumulate(&self, x: &Tensor, y: &Tensor, sizes: &[i64]) -> (f64, Vec<(String, Tensor)>) {
        let (mut start, mut total) = (0, 0.0);
        for &size in sizes {
            let share = size as f64 / x.size()[0] as f64;
            let out = self.forward(&x.narrow(0, start, size));
            let loss = cross_entropy(&out, &y.narrow(0, start, size));
            (&loss * share).backward();
            total += loss.double_value(&[]) * share;
            start += size;
        }
        let variables = self.store.variables().into_iter();
        let defined = variables.filter(|(_, tensor)| tensor.grad().defined());
        let mut all: Vec<_> = defined
            .map(|(name, tensor)| (name, tensor.grad()))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        (total, all)
    }
}

/// Three equal steps on every cut, under every schedule, in every mode of recomputation give plain tch's
/// results, and so does inference; the input stays unchanged.
pub(crate) fn as_plain(parts: &Parts) {
    single_threaded();
    let (x, y) = batch8();
    let before = x.copy();
    let mut expected = None;
    everywhere(&sequential(parts), |builder, what| {
        let mut pipe = builder.build().unwrap_or_else(|e| panic!("{what}: {e}"));
        let (output, loss, named) = expected.get_or_insert_with(|| {
            let plain = Plain::new(parts, &mut pipe);
            let parts = x.split_with_sizes([4, 3, 3], 0);
            let parts = parts
                .iter()
                .map(|part| tch::no_grad(|| plain.forward(part)));
            let output = Tensor::cat(&parts.collect::<Vec<_>>(), 0);
            let (loss, named) = plain.accumulate(&x, &y, &[4, 3, 3]);
            (output, loss, named)
        });
        let own = pipe.forward(&x).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(own.allclose(output, 1e-6, 1e-6, false), "{what}: output");
        for step in 0..3 {
            let report = pipe.train_step(&x, &y, cross_entropy);
            let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
            let off = (report.read().unwrap().loss - *loss).abs();
            assert!(off < 1e-9, "{what}, step {step}: loss off by {off}");
            assert_same_bits(
                &gradients(&mut pipe),
                named,
                &format!("{what}, step {step}"),
            );
            pipe.zero_grad().unwrap();
        }
        assert!(x.equal(&before), "{what}: the input has changed");
    });
}
