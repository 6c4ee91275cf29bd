//! Shared parts of the integration tests: small models in two forms, as layers of a pipeline and as plain tch
//! modules, with the same parameters.
#![allow(dead_code, reason = "every test binary uses its own part of this")]

pub(crate) mod apart;
pub(crate) mod covering;
pub(crate) mod everywhere;
pub(crate) mod models;
pub(crate) mod reference;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Pipeline, Sequential};

/// Builds one layer, for the pipeline and for the plain model.
pub(crate) type Build = fn(&nn::Path<'_>) -> Box<dyn nn::ModuleT>;

/// A chain of named layers.
pub(crate) type Chain = Vec<(&'static str, Build)>;

/// `Box<dyn ModuleT>` as a module.
#[derive(Debug)]
pub(crate) struct Boxed(pub(crate) Box<dyn nn::ModuleT>);

impl nn::ModuleT for Boxed {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        self.0.forward_t(xs, train)
    }
}

/// The chain as a pipeline's model.
pub(crate) fn sequential(chain: &Chain) -> Sequential {
    chain
        .iter()
        .fold(Sequential::new(), |model, &(name, build)| {
            model.layer(name, move |path| Boxed(build(path)))
        })
}

/// The chain as one model in the calling thread, without the library.
#[derive(Debug)]
pub(crate) struct Plain {
    store: nn::VarStore,
    modules: Vec<Box<dyn nn::ModuleT>>,
}

impl Plain {
    /// Copies the current values of `pipe`.
    pub(crate) fn like(chain: &Chain, pipe: &mut Pipeline) -> Self {
        let store = nn::VarStore::new(Device::Cpu);
        let modules = chain
            .iter()
            .map(|(name, build)| build(&(store.root() / *name)))
            .collect();
        let plain = Self { store, modules };
        plain.copy_from(pipe);
        plain
    }

    pub(crate) fn copy_from(&self, pipe: &mut Pipeline) {
        let mut own = self.store.variables();
        let all = pipe
            .parameters()
            .unwrap()
            .into_iter()
            .chain(pipe.buffers().unwrap());
        gpipe::tch::no_grad(|| {
            for (name, value) in all {
                own.get_mut(&name)
                    .unwrap_or_else(|| panic!("no `{name}`"))
                    .copy_(&value);
            }
        });
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        self.modules
            .iter()
            .fold(x.shallow_clone(), |x, module| module.forward_t(&x, true))
    }

    /// Gradients by name; absent ones left out.
    pub(crate) fn gradients(&self) -> Vec<(String, Tensor)> {
        let mut all: Vec<_> = self
            .store
            .variables()
            .into_iter()
            .filter(|(_, tensor)| tensor.requires_grad() && tensor.grad().defined())
            .map(|(name, tensor)| (name, tensor.grad()))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Plain gradient accumulation over micro-batches of these sizes; returns the loss.
    pub(crate) fn accumulate(&self, x: &Tensor, y: &Tensor, sizes: &[i64]) -> f64 {
        let samples: i64 = sizes.iter().sum();
        let (mut start, mut total) = (0, 0.0);
        for &size in sizes {
            let (x, y) = (x.narrow(0, start, size), y.narrow(0, start, size));
            let share = size as f64 / samples as f64;
            let loss = cross_entropy(&self.forward(&x), &y);
            (&loss * share).backward();
            total += loss.double_value(&[]) * share;
            start += size;
        }
        total
    }
}

pub(crate) fn cross_entropy(out: &Tensor, y: &Tensor) -> Tensor {
    out.cross_entropy_for_logits(y)
}

/// The pipeline's gradients by name.
pub(crate) fn gradients(pipe: &mut Pipeline) -> Vec<(String, Tensor)> {
    let mut all: Vec<_> = pipe
        .parameters()
        .unwrap()
        .into_iter()
        .filter(|(_, tensor)| tensor.grad().defined())
        .map(|(name, tensor)| (name, tensor.grad()))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Parameters and buffers as they are now, by name.
pub(crate) fn snapshot(pipe: &mut Pipeline) -> Vec<(String, Tensor)> {
    let all = pipe
        .parameters()
        .unwrap()
        .into_iter()
        .chain(pipe.buffers().unwrap());
    let mut all: Vec<_> = all
        .map(|(name, tensor)| (name, tensor.detach().copy()))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[track_caller]
pub(crate) fn assert_same_bits(left: &[(String, Tensor)], right: &[(String, Tensor)], what: &str) {
    let names = |list: &[(String, Tensor)]| list.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    assert_eq!(names(left), names(right), "{what}");
    for ((name, left), (_, right)) in left.iter().zip(right) {
        assert!(
            is_same(left, right),
            "{what}: {name} differs by {}",
            (left - right).abs().max()
        );
    }
}

/// Equality that treats NaNs as equal.
fn is_same(left: &Tensor, right: &Tensor) -> bool {
    let rest = |of: &Tensor| of.masked_fill(&of.isnan(), 0);
    left.equal(right) || left.isnan().equal(&right.isnan()) && rest(left).equal(&rest(right))
}

#[track_caller]
pub(crate) fn assert_close(left: &[(String, Tensor)], right: &[(String, Tensor)], what: &str) {
    assert_eq!(left.len(), right.len(), "{what}");
    for ((name, left), (_, right)) in left.iter().zip(right) {
        assert!(left.allclose(right, 1e-4, 1e-6, false), "{what}: {name}");
    }
}

/// Eight layers with parameters of different sizes.
pub(crate) fn mlp() -> Chain {
    fn hidden(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        Box::new(nn::linear(path, 16, 16, nn::LinearConfig::default()))
    }
    fn tanh(_: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        Box::new(nn::func(Tensor::tanh))
    }
    fn residual(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        let inner = nn::linear(path / "inner", 16, 16, nn::LinearConfig::default());
        Box::new(nn::func(move |x| {
            x + x.apply(&inner).gelu("tanh") * x.sigmoid()
        }))
    }
    fn norm(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        Box::new(nn::layer_norm(
            path,
            vec![16],
            nn::LayerNormConfig::default(),
        ))
    }
    fn input(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        Box::new(nn::linear(path, 12, 16, nn::LinearConfig::default()))
    }
    fn head(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        Box::new(nn::linear(path, 16, 5, nn::LinearConfig::default()))
    }
    vec![
        ("input", input),
        ("act1", tanh),
        ("residual", residual),
        ("norm", norm),
        ("hidden", hidden),
        ("act2", tanh),
        ("residual2", residual),
        ("head", head),
    ]
}

/// Convolutions, batch norm in training mode, transposed activations.
pub(crate) fn convnet() -> Chain {
    fn conv1(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        let config = nn::ConvConfig {
            padding: 1,
            ..nn::ConvConfig::default()
        };
        Box::new(nn::conv2d(path, 3, 6, 3, config))
    }
    fn norm(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        Box::new(nn::batch_norm2d(path, 6, nn::BatchNormConfig::default()))
    }
    fn relu(_: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        Box::new(nn::func(Tensor::relu))
    }
    fn conv2(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        let config = nn::ConvConfig {
            stride: 2,
            ..nn::ConvConfig::default()
        };
        Box::new(nn::conv2d(path, 6, 6, 3, config))
    }
    fn flatten(_: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        // A transposed view crosses the stage boundary, and its gradient comes back through it.
        Box::new(nn::func(|x| {
            x.transpose(1, 3)
                .mean_dim([1_i64, 2].as_slice(), false, None)
        }))
    }
    fn head(path: &nn::Path<'_>) -> Box<dyn nn::ModuleT> {
        Box::new(nn::linear(path, 6, 5, nn::LinearConfig::default()))
    }
    vec![
        ("conv1", conv1),
        ("norm1", norm),
        ("act1", relu),
        ("conv2", conv2),
        ("norm2", norm),
        ("act2", relu),
        ("flatten", flatten),
        ("head", head),
    ]
}

/// A batch for [`mlp`].
pub(crate) fn mlp_batch(samples: i64) -> (Tensor, Tensor) {
    batch(&[samples, 12], samples)
}

/// A batch for [`convnet`].
pub(crate) fn image_batch(samples: i64) -> (Tensor, Tensor) {
    batch(&[samples, 3, 9, 8], samples)
}

/// Fixed numbers without the process-wide generator, which parallel tests share.
pub(crate) fn batch(shape: &[i64], samples: i64) -> (Tensor, Tensor) {
    let count: i64 = shape.iter().product();
    let wave = Tensor::arange(count, (Kind::Float, Device::Cpu)) * 12.9898;
    let x = (wave.sin() * 43_758.547).frac().view(shape);
    let y = (Tensor::arange(samples, (Kind::Int64, Device::Cpu)) * 3).remainder(5);
    (x, y)
}

/// `count` CPU devices.
pub(crate) fn cpus(count: usize) -> Vec<Device> {
    vec![Device::Cpu; count]
}

/// Runs `body` on a thread for at most five minutes: fails instead of hanging.
pub(crate) fn watched(body: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let worker = thread::spawn(move || {
        body();
        done.send(()).unwrap();
    });
    match wait.recv_timeout(Duration::from_mins(5)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a hang: no end after five minutes"),
        _ => {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Sets one intra-op thread for the plain model. The first use of libtorch on a thread sets the number to
/// that of the latest setting on any thread, so it must come first.
pub(crate) fn single_threaded() {
    let _ = gpipe::tch::get_num_threads();
    gpipe::tch::set_num_threads(1);
}
