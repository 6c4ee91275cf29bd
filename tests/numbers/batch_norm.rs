//! Batch norm with running statistics of the whole mini-batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::models;
use crate::support::reference::{Named, Reference, asking, optimizer, pipeline_numbers, sizes};
use crate::support::*;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{self, Device, Kind, Tensor, nn};
use gpipe::{
    Layer, Pipeline, PipelineBuilder, Sequential, Values,
    error::NonFinite,
    layers::{self, Context},
    settings::Recompute,
};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);
const MICRO_BATCHES: [usize; 6] = [1, 2, 3, 4, 7, 8];

fn modes() -> [Recompute; 3] {
    [Recompute::Never, Recompute::ExceptLast, Recompute::Always]
}

fn config() -> nn::BatchNormConfig {
    nn::BatchNormConfig {
        momentum: 0.3,
        ..nn::BatchNormConfig::default()
    }
}

/// Adds a parameter, so that the norm's input is computed and differs by feature.
fn shift(path: &nn::Path<'_>, features: i64, dims: usize) -> impl Fn(&Tensor) -> Tensor + 'static {
    let mut shape = vec![1; dims];
    shape[1] = features;
    let shift = path.randn("shift", &shape, 0.0, 3.0);
    move |x| x * 2.0 + &shift
}

/// One norm after a shift.
fn norm_after_shift(features: i64, dims: usize) -> Sequential {
    Sequential::new()
        .layer("shift", move |p| {
            let shift = shift(p, features, dims);
            nn::func(move |x| shift(x))
        })
        .layer("norm", move |p| {
            layers::BatchNorm::new(p, features, config())
        })
}

fn two_stages(model: Sequential, micro_batches: usize) -> PipelineBuilder {
    Pipeline::builder(model)
        .devices(&cpus(2))
        .micro_batches(micro_batches)
        .threads_per_stage(1)
        .seed(3)
}

fn spread(out: &Tensor, y: &Tensor) -> Tensor {
    (out.flatten(1, -1).mean_dim(1_i64, false, Kind::Float) - y)
        .square()
        .mean(Kind::Float)
}

/// A different batch for each step.
fn batches(shape: &[i64]) -> Vec<(Tensor, Tensor)> {
    let (x, _) = batch(shape, shape[0]);
    let y = Tensor::arange(shape[0], (Kind::Float, Device::Cpu));
    (0..3)
        .map(|step| (&x * (f64::from(step) + 1.0) - f64::from(step), y.copy()))
        .collect()
}

#[test]
fn running_statistics_are_those_of_one_norm_over_the_whole_mini_batch() {
    single_threaded();
    for shape in [
        vec![19, 5],
        vec![19, 5, 4],
        vec![19, 5, 3, 2],
        vec![19, 5, 3, 2, 2],
    ] {
        let batches = batches(&shape);
        let store = nn::VarStore::new(Device::Cpu);
        let root = store.root();
        let shift = shift(&(&root / "shift"), 5, shape.len());
        let path = &root / "norm";
        let norm: Box<dyn nn::ModuleT> = match shape.len() {
            4 => Box::new(nn::batch_norm2d(path, 5, config())),
            5 => Box::new(nn::batch_norm3d(path, 5, config())),
            _ => Box::new(nn::batch_norm1d(path, 5, config())),
        };
        for micro_batches in MICRO_BATCHES {
            for recompute in modes() {
                let what = format!("{shape:?} m={micro_batches} recompute {recompute}");
                let mut pipe = two_stages(norm_after_shift(5, shape.len()), micro_batches)
                    .recompute(recompute)
                    .build()
                    .unwrap();
                let own = store.variables();
                tch::no_grad(|| {
                    for (name, value) in snapshot(&mut pipe) {
                        own[&name].shallow_clone().copy_(&value);
                    }
                });
                for (x, y) in &batches {
                    pipe.train_step(x, y, spread).unwrap();
                    let _ = tch::no_grad(|| norm.forward_t(&shift(x), true));
                }
                let expected: Named = ["norm.running_mean", "norm.running_var"]
                    .map(|name| (name.to_owned(), own[name].shallow_clone()))
                    .into();
                assert_close(&pipe.buffers().unwrap(), &expected, &what);
                let x = &batches[0].0;
                let plain = tch::no_grad(|| norm.forward_t(&shift(x), false));
                let output = pipe.forward(x).unwrap();
                assert!(output.allclose(&plain, 1e-4, 1e-5, false), "{what}: output");
            }
        }
    }
}

/// The convolutions of `support::convnet` with the library's norms.
fn deferred() -> Sequential {
    let chain = convnet();
    chain
        .iter()
        .fold(Sequential::new(), |model, &(name, build)| {
            if name.starts_with("norm") {
                model.layer(name, |p| layers::BatchNorm::new(p, 6, <_>::default()))
            } else {
                model.layer(name, move |p| Boxed(build(p)))
            }
        })
}

/// The running statistics.
fn statistics(pipe: &mut Pipeline) -> Named {
    let buffers = pipe.buffers().unwrap();
    assert_eq!(buffers.len(), 4);
    buffers.into_iter().map(|(n, t)| (n, t.copy())).collect()
}

#[test]
fn each_micro_batch_is_normalized_as_by_the_plain_norm() {
    single_threaded();
    let (x, y) = image_batch(19);
    for micro_batches in MICRO_BATCHES {
        let mut pipe = two_stages(deferred(), micro_batches).build().unwrap();
        let plain = Reference::new(&models::convnet(), &snapshot(&mut pipe));
        let (x, own) = (asking(&x), asking(&x));
        let loss = plain.accumulate(&own, &y, &sizes(19, micro_batches));
        let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
        let what = format!("m={micro_batches}");
        assert_eq!(
            report.read().unwrap().loss.to_bits(),
            loss.to_bits(),
            "{what}"
        );
        assert_same_bits(&gradients(&mut pipe), &plain.gradients(), &what);
        let input = report.input_gradient.unwrap().into_one().unwrap();
        assert!(input.equal(&own.grad()), "{what}: gradient of the input");
    }
}

#[test]
fn the_same_bits_under_every_cut_schedule_and_recompute_mode() {
    let (x, y) = image_batch(19);
    let numbers = |pipe: &mut Pipeline| {
        pipeline_numbers(pipe, &models::convnet(), (&x, &y), 5)
            .unwrap()
            .after
    };
    for micro_batches in [1, 3, 8] {
        let builder = || {
            Pipeline::builder(deferred())
                .micro_batches(micro_batches)
                .threads_per_stage(1)
                .seed(3)
        };
        let expected = numbers(&mut builder().build().unwrap());
        for schedule in ScheduleKind::ALL {
            if schedule == ScheduleKind::ForwardOnly {
                continue;
            }
            for (devices, recompute) in [1, 3, 4].into_iter().zip(modes()) {
                let what = format!("{schedule} p={devices} m={micro_batches} {recompute}");
                let mut pipe = builder()
                    .devices(&cpus(devices))
                    .schedule(schedule)
                    .recompute(recompute)
                    .build()
                    .unwrap();
                assert_same_bits(&numbers(&mut pipe), &expected, &what);
            }
        }
    }
}

/// Multiplies by NaN, or fails, on the selected micro-batch.
#[derive(Debug)]
struct Brittle(Arc<AtomicUsize>);

const NEVER: usize = usize::MAX;
const NAN_FROM: usize = 100;

impl Layer for Brittle {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        let (switch, micro) = (self.0.load(Ordering::SeqCst), ctx.micro().index());
        anyhow::ensure!(switch != micro, "the layer gives up");
        let factor = if switch == NAN_FROM + micro {
            f64::NAN
        } else {
            1.0
        };
        inputs.try_map(|tensor| Ok(tensor.f_mul_scalar(factor)?))
    }
}

#[test]
fn a_failed_or_skipped_step_and_inference_leave_the_statistics_alone() {
    watched(|| {
        let (x, y) = image_batch(11);
        for recompute in modes() {
            let switch = Arc::new(AtomicUsize::new(NEVER));
            let own = Arc::clone(&switch);
            let model = deferred().layer("brittle", move |_| Brittle(Arc::clone(&own)));
            let build = || {
                two_stages(model.clone(), 4)
                    .recompute(recompute.clone())
                    .on_non_finite(NonFinite::Skip)
                    .build()
                    .unwrap()
            };
            let (mut hit, mut calm) = (build(), build());
            let mut optimizers = (optimizer(), optimizer());
            for bad in [0, 3, NAN_FROM, NAN_FROM + 3] {
                let before = statistics(&mut hit);
                switch.store(bad, Ordering::SeqCst);
                let outcome = hit.train_step(&x, &y, cross_entropy);
                switch.store(NEVER, Ordering::SeqCst);
                assert!(outcome.map_or(bad < NAN_FROM, |report| report.read().unwrap().skipped()));
                let _ = hit.forward(&x).unwrap();
                assert_same_bits(&statistics(&mut hit), &before, "after a bad step");
                let good = hit
                    .train_step(&x, &y, cross_entropy)
                    .unwrap()
                    .read()
                    .unwrap()
                    .loss;
                let expected = calm
                    .train_step(&x, &y, cross_entropy)
                    .unwrap()
                    .read()
                    .unwrap()
                    .loss;
                assert_eq!(good.to_bits(), expected.to_bits());
                let after = statistics(&mut hit);
                assert!(!after[0].1.equal(&before[0].1), "a good step moves them");
                assert_same_bits(&after, &statistics(&mut calm), "after a good step");
                optimizers.0.step(&mut hit).unwrap();
                optimizers.1.step(&mut calm).unwrap();
            }
        }
    });
}

#[test]
fn inputs_without_variance_or_of_another_shape_are_refused_in_words() {
    let train = |shape: &[i64], micro_batches| {
        let mut pipe = two_stages(norm_after_shift(5, 2), micro_batches)
            .build()
            .unwrap();
        let (x, y) = (batch(shape, shape[0]).0, Tensor::zeros([shape[0]], FLOAT));
        pipe.train_step(&x, &y, spread).map(drop)
    };
    train(&[8, 5], 4).unwrap();
    let error = train(&[8, 5], 8).unwrap_err().to_string();
    assert!(error.contains("layer `norm`, micro-batch"), "{error}");
    assert!(error.contains("use fewer micro-batches"), "{error}");
    let flat = Sequential::new().layer("norm", |p| layers::BatchNorm::new(p, 4, config()));
    let mut pipe = Pipeline::builder(flat).build().unwrap();
    let error = pipe.forward(batch(&[8, 5], 8).0).unwrap_err().to_string();
    assert!(error.contains("takes [samples, 4, ...]"), "{error}");
}

#[test]
fn the_configuration_is_that_of_the_plain_norm() {
    let bare = nn::BatchNormConfig {
        affine: false,
        ..config()
    };
    let model = Sequential::new().layer("norm", move |p| layers::BatchNorm::new(p, 5, bare));
    let mut pipe = Pipeline::builder(model).build().unwrap();
    assert!(pipe.parameters().unwrap().is_empty());
    let x = batch(&[8, 5], 8).0;
    assert!(
        pipe.forward(&x).unwrap().allclose(&x, 1e-4, 1e-4, false),
        "a mean of 0 and a variance of 1"
    );
}

/// A custom layer that runs a batch norm, and declares nothing else.
#[derive(Debug)]
struct Wrapped(layers::BatchNorm);

impl Layer for Wrapped {
    fn forward(&self, inputs: Values, ctx: &Context) -> anyhow::Result<Values> {
        self.0.forward(inputs, ctx)
    }
}

/// Regression test: a norm's running statistics silently stayed unchanged inside a layer that did not pass on
/// `commit`. Statistics are now reported to the context of the pass, which every layer receives.
#[test]
fn a_norm_inside_of_a_layer_that_does_not_name_it_moves_as_well() {
    single_threaded();
    let norm = |p: &nn::Path<'_>| layers::BatchNorm::new(p, 5, config());
    let plain = Sequential::new().layer("norm", norm);
    let wrapped = Sequential::new().layer("norm", move |p| Wrapped(norm(p)));
    let statistics = |model: Sequential| {
        let mut pipe = two_stages(model.layer("last", |_| nn::func(|x| x * 1.0)), 3)
            .build()
            .unwrap();
        for (x, y) in batches(&[19, 5]) {
            pipe.train_step(&x, &y, spread).unwrap();
        }
        pipe.buffers().unwrap()
    };
    let (plain, wrapped) = (statistics(plain), statistics(wrapped));
    let mean = &plain[0].1;
    assert_ne!(mean, &mean.zeros_like());
    assert_same_bits(&plain, &wrapped, "statistics");
}
