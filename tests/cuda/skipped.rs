//! Steps of which only the devices know whether they count: the skipped steps are those of the CPU, whose
//! host looks at each, and the numbers are nearly the same.

use gpipe::tch::{Device, Tensor, nn};
use gpipe::{
    Layer, Loss, Optimizer, Pipeline, PipelineBuilder, Sequential, Values,
    error::NonFinite,
    layers::{self, Context},
    optim::{Adam, AdamW, OptimizerKind, Sgd},
    settings::{LossScale, Precision},
};

use crate::harness::Test;
use crate::simulated::fail;
use crate::support::{assert_same_bits, batch, cross_entropy, gradients, snapshot};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("skipped::overflows", || {
            let scale = LossScale {
                initial: 1024.0,
                growth_interval: 2,
            };
            same_everywhere(1e9, move |builder| {
                builder(linears())
                    .precision(Precision::Fp16)
                    .loss_scale(scale)
            });
        }),
        ("skipped::losses_that_are_not_finite_and_buffers", || {
            let norm = |p: &nn::Path<'_>| nn::batch_norm1d(p, 8, nn::BatchNormConfig::default());
            same_everywhere(f64::INFINITY, move |builder| {
                let model = linear("one", 8).layer("norm", norm);
                builder(then_linear(model, "two", 5)).on_non_finite(NonFinite::Skip)
            });
        }),
        // Data that such layers gather count only after good steps: the host looks.
        ("skipped::layers_that_gather", || {
            let norm =
                |p: &nn::Path<'_>| layers::BatchNorm::new(p, 8, nn::BatchNormConfig::default());
            same_everywhere(f64::NAN, move |builder| {
                let model = linear("one", 8).layer("norm", norm);
                builder(then_linear(model, "two", 5)).on_non_finite(NonFinite::Skip)
            });
        }),
        ("skipped::a_verdict_is_heard_where_somebody_looks", looks),
        (
            "skipped::the_next_step_tells_that_a_scale_is_too_small",
            too_small,
        ),
        (
            "skipped::what_counts_nothing_is_not_looked_at",
            counts_nothing,
        ),
        (
            "skipped::no_host_looks_for_a_layer_that_only_computes",
            nobody_looks,
        ),
    ]
}

const PLACES: [[Device; 2]; 3] = [
    [Device::Cuda(0), Device::Cuda(1)],
    [Device::Cuda(0), Device::Cuda(0)],
    [Device::Cuda(0), Device::Cpu],
];

fn then_linear(model: Sequential, name: &str, outputs: i64) -> Sequential {
    model.layer(name, move |p| {
        nn::linear(p, 8, outputs, nn::LinearConfig::default())
    })
}

fn linear(name: &str, outputs: i64) -> Sequential {
    then_linear(Sequential::new(), name, outputs)
}

fn linears() -> Sequential {
    let model = linear("one", 8).layer("relu", |_| nn::func(|x| x.relu()));
    then_linear(model, "two", 5)
}

fn builder(model: Sequential, devices: &[Device]) -> PipelineBuilder {
    Pipeline::builder(model)
        .devices(devices)
        .micro_batches(3)
        .threads_per_stage(1)
}

/// In the host's memory.
fn here(values: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
    let values = values.into_iter();
    values
        .map(|(name, value)| (name, value.to_device(Device::Cpu)))
        .collect()
}

/// In the steps of these numbers the loss is so large that gradients overflow.
const OVERFLOWS: [usize; 4] = [0, 3, 4, 8];
const STEPS: usize = 10;

/// Of each step: why it was skipped, the scale, and the loss and the norm of one that was not.
type Told = Vec<(Option<String>, Option<f64>, Option<[f64; 2]>)>;

/// Largest difference of numbers of two kinds of devices. A step too many or too few makes a thousand
/// times that.
const NEAR: f64 = 1e-5;

/// Trains, and reads each report at once, or all of them at the end.
fn run(
    builder: PipelineBuilder,
    update: OptimizerKind,
    factor: f64,
    late: bool,
) -> (Told, Vec<(String, Tensor)>) {
    let mut pipe = builder.build().unwrap();
    let mut optimizer = Optimizer::new(update);
    let (x, y) = batch(&[6, 8], 6);
    let mut all = Vec::new();
    for step in 0..STEPS {
        let times = if OVERFLOWS.contains(&step) {
            factor
        } else {
            1.0
        };
        let loss = move |out: &Tensor, y: &Tensor| cross_entropy(out, y) * times;
        let report = pipe.train_step(&x, &y, loss).unwrap();
        if !late {
            let _ = report.read().unwrap();
        }
        let norm = pipe.clip_gradients(0.3).unwrap();
        optimizer.step(&mut pipe).unwrap();
        all.push((report, norm));
    }
    let told = all.iter().map(|(report, norm)| {
        let own = report.read().unwrap();
        let numbers = (!own.skipped()).then(|| [own.loss, norm.read().unwrap()]);
        (own.non_finite.clone(), own.loss_scale, numbers)
    });
    (told.collect(), here(snapshot(&mut pipe)))
}

/// Compares devices of all kinds with the CPU.
fn same_everywhere(
    factor: f64,
    build: impl Fn(&dyn Fn(Sequential) -> PipelineBuilder) -> PipelineBuilder,
) {
    crate::support::single_threaded();
    let on = |devices: [Device; 2]| build(&move |model| builder(model, &devices));
    let sgd = Sgd {
        lr: 0.05,
        momentum: 0.9,
        ..Sgd::default()
    };
    let dampened = Sgd {
        dampening: 0.5,
        ..sgd
    };
    let updates: [OptimizerKind; 4] = [
        AdamW::default().into(),
        Adam::default().into(),
        sgd.into(),
        dampened.into(),
    ];
    for (turn, update) in updates.into_iter().enumerate() {
        let (told, weights) = run(on([Device::Cpu; 2]), update, factor, false);
        let skipped = told.iter().filter(|(why, ..)| why.is_some()).count();
        assert_eq!(skipped, OVERFLOWS.len(), "{told:?}");
        for devices in PLACES {
            let case = format!("{update:?}, {devices:?}");
            let own = run(on(devices), update, factor, turn % 2 == 0);
            for (own, told) in own.0.iter().zip(&told) {
                assert_eq!((&own.0, own.1), (&told.0, told.1), "{case}");
                let pairs = own.2.iter().flatten().zip(told.2.iter().flatten());
                let off = pairs.map(|(own, told)| (own - told).abs());
                assert!(off.fold(0.0, f64::max) < NEAR, "{case}: {own:?}, {told:?}");
            }
            for ((name, own), (_, there)) in own.1.iter().zip(&weights) {
                let off = (own - there).abs().max().double_value(&[]);
                assert!(off < NEAR, "{case}: {name} differs by {off}");
            }
        }
    }
}

/// Who looks at parameters or gradients, or adds to them, before an optimizer has used them sees
/// what a host that looks would have left.
fn looks() {
    crate::support::single_threaded();
    let run = |devices: [Device; 2]| {
        let builder = builder(linears(), &devices).on_non_finite(NonFinite::Skip);
        let mut pipe = builder.build().unwrap();
        let mut optimizer = Optimizer::new(AdamW::default());
        let (x, y) = batch(&[6, 8], 6);
        let mut seen = Vec::new();
        let rounds = [[1.0, f64::NAN], [f64::NAN, 1.0], [f64::NAN; 2], [1.0; 2]];
        for (round, factors) in rounds.into_iter().enumerate() {
            for factor in factors {
                let loss = move |out: &Tensor, y: &Tensor| cross_entropy(out, y) * factor;
                pipe.train_step(&x, &y, loss).unwrap();
                if round % 2 == 0 {
                    let own = gradients(&mut pipe).into_iter();
                    seen.extend(own.map(|(name, grad)| (name, grad.copy())));
                }
            }
            seen.push(("output".to_owned(), pipe.forward(&x).unwrap()));
            optimizer.step(&mut pipe).unwrap();
        }
        seen.extend(snapshot(&mut pipe));
        here(seen)
    };
    assert_same_bits(&run(PLACES[0]), &run([Device::Cpu; 2]), "seen");
}

/// The host notices a step later at the latest.
fn too_small() {
    let smallest = LossScale {
        initial: 1.0 / 16384.0,
        ..LossScale::default()
    };
    let builder = builder(linears(), &PLACES[0]).precision(Precision::Fp16);
    let mut pipe = builder.loss_scale(smallest).build().unwrap();
    let (x, y) = batch(&[6, 8], 6);
    let infinite = |out: &Tensor, y: &Tensor| cross_entropy(out, y) * f64::INFINITY;
    let before = snapshot(&mut pipe);
    let first = pipe.train_step(&x, &y, infinite).unwrap();
    assert!(first.read().unwrap().skipped());
    let error = pipe.train_step(&x, &y, infinite).unwrap_err().to_string();
    assert!(error.contains("a loss scale as small as"), "{error}");
    // Better steps continue the training.
    let good = pipe.train_step(&x, &y, cross_entropy).unwrap();
    assert!(!good.read().unwrap().skipped());
    assert_same_bits(&snapshot(&mut pipe), &before, "nothing was updated");
}

/// The loss of a micro-batch with weight 0 may be NaN: devices skip no step for it.
fn counts_nothing() {
    crate::support::single_threaded();
    let run = |devices: [Device; 2]| {
        let builder = builder(linears(), &devices).on_non_finite(NonFinite::Skip);
        let mut pipe = builder.build().unwrap();
        let (x, y) = batch(&[6, 8], 6);
        // The targets of the second micro-batch begin with class 1.
        let loss = |out: &Tensor, y: &Tensor| match y.int64_value(&[0]) {
            1 => Loss::weighted(cross_entropy(out, y) * f64::NAN, 0.0),
            _ => Loss::weighted(cross_entropy(out, y), 2.0),
        };
        let report = pipe.train_step(&x, &y, loss).unwrap();
        let numbers = report.read().unwrap();
        assert_eq!(numbers.non_finite, None);
        assert!(numbers.loss.is_finite());
        (numbers.loss.to_bits(), here(gradients(&mut pipe)))
    };
    let (loss, on_cpu) = run([Device::Cpu; 2]);
    for devices in PLACES {
        let (own, there) = run(devices);
        assert_eq!(own, loss);
        assert_same_bits(&there, &on_cpu, "on devices");
    }
}

/// A layer that only computes and declares nothing.
#[derive(Debug)]
struct Silent(nn::Linear);

impl Layer for Silent {
    fn forward(&self, inputs: Values, _: &Context) -> anyhow::Result<Values> {
        Ok(inputs.one()?.apply(&self.0).into())
    }
}

/// A layer that did not say that it gathers nothing had the host look at the gradients after each
/// step that may be skipped. On a device that never ends, a host that looks does not come back.
fn nobody_looks() {
    let model = Sequential::new().layer("one", |p| {
        Silent(nn::linear(p, 8, 8, nn::LinearConfig::default()))
    });
    let builder = builder(then_linear(model, "two", 5), &PLACES[0]);
    let builder = builder.on_non_finite(NonFinite::Skip);
    let mut pipe = builder
        .patience(std::time::Duration::from_secs(1))
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(AdamW::default());
    let (x, y) = batch(&[6, 8], 6);
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    optimizer.step(&mut pipe).unwrap();
    fail("stall", 1);
    let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
    assert!(!report.is_ready());
}
