//! Steps whose validity only the devices know: the numbers are those of pipelines whose host checks each
//! step.

use gpipe::tch::{Kind, Tensor, nn};
use gpipe::torch::streams::Recorder;
use gpipe::{
    Layer, Loss, Optimizer, Pipeline, PipelineBuilder, Sequential, Values,
    error::NonFinite,
    layers::{self, Context},
    optim::{Adam, AdamW, OptimizerKind, Sgd},
    report::StepReport,
    settings::{LossScale, Precision},
};

use crate::support::{
    assert_same_bits, batch, cpus, cross_entropy, gradients, single_threaded, snapshot,
};

/// Results of a run, compared bit by bit.
#[derive(Debug, PartialEq)]
struct Told {
    losses: Vec<u64>,
    norms: Vec<Option<u64>>,
    skipped: Vec<Option<String>>,
    scales: Vec<Option<f64>>,
    state: Option<serde_json::Value>,
}

type Ran = (Told, Vec<(String, Tensor)>);

/// Steps in which the loss is so large that gradients overflow in fp16.
const OVERFLOWS: [usize; 4] = [0, 3, 4, 8];
const STEPS: usize = 10;

fn updates() -> [OptimizerKind; 4] {
    let sgd = Sgd {
        lr: 0.05,
        momentum: 0.9,
        ..Sgd::default()
    };
    let dampened = Sgd {
        dampening: 0.5,
        ..sgd
    };
    [
        AdamW::default().into(),
        Adam::default().into(),
        sgd.into(),
        dampened.into(),
    ]
}

/// Trains, and reads each report at once, or all of them at the end.
fn run(builder: PipelineBuilder, update: OptimizerKind, factor: f64, late: bool) -> Ran {
    single_threaded();
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
    let told = |report: &StepReport| report.read().unwrap().non_finite.clone();
    let told = Told {
        losses: all
            .iter()
            .map(|(own, _)| own.read().unwrap().loss.to_bits())
            .collect(),
        norms: all
            .iter()
            .map(|(report, norm)| {
                (!report.read().unwrap().skipped()).then(|| norm.read().unwrap().to_bits())
            })
            .collect(),
        skipped: all.iter().map(|(report, _)| told(report)).collect(),
        scales: all
            .iter()
            .map(|(report, _)| report.read().unwrap().loss_scale)
            .collect(),
        state: pipe.loss_scale_state(),
    };
    (told, snapshot(&mut pipe))
}

/// Compares a pipeline on the CPU with the same one on accelerators of all kinds.
fn same_everywhere(build: impl Fn(usize) -> PipelineBuilder, factor: f64, skips: usize) {
    for (turn, update) in updates().into_iter().enumerate() {
        let (told, weights) = run(build(2), update, factor, false);
        let skipped = told.skipped.iter().flatten().count();
        assert_eq!(skipped, skips, "{told:?}");
        for places in [[Some(0), Some(1)], [Some(0), Some(0)], [Some(0), None]] {
            let late = turn % 2 == 0;
            let case = format!("{update:?}, {places:?}, late: {late}");
            let recorder = Recorder::new(&places);
            let own = run(build(2).record_streams(&recorder), update, factor, late);
            assert_eq!(own.0, told, "{case}");
            assert_same_bits(&own.1, &weights, &case);
            let summary = recorder.check().unwrap();
            assert!(summary.host_waits == 0 || places[1].is_none(), "{case}");
            (0..2).for_each(|seed| recorder.play(seed).unwrap());
        }
    }
}

fn linears() -> Sequential {
    Sequential::new()
        .layer("one", |p| nn::linear(p, 8, 8, nn::LinearConfig::default()))
        .layer("relu", |_| nn::func(|x| x.relu()))
        .layer("two", |p| nn::linear(p, 8, 5, nn::LinearConfig::default()))
}

#[test]
fn an_overflow_is_skipped_by_the_devices_alone() {
    let build = |stages: usize| {
        Pipeline::builder(linears())
            .devices(&cpus(stages))
            .micro_batches(3)
            .threads_per_stage(1)
            .precision(Precision::Fp16)
            .loss_scale(LossScale {
                initial: 1024.0,
                growth_interval: 2,
            })
    };
    same_everywhere(build, 1e9, OVERFLOWS.len());
}

#[test]
fn so_is_a_loss_that_is_not_finite_and_buffers_are_as_before() {
    let build = |stages: usize| {
        let model = Sequential::new()
            .layer("one", |p| nn::linear(p, 8, 8, nn::LinearConfig::default()))
            .layer("norm", |p| {
                nn::batch_norm1d(p, 8, nn::BatchNormConfig::default())
            })
            .layer("two", |p| nn::linear(p, 8, 5, nn::LinearConfig::default()));
        Pipeline::builder(model)
            .devices(&cpus(stages))
            .micro_batches(2)
            .threads_per_stage(1)
            .on_non_finite(NonFinite::Skip)
    };
    same_everywhere(build, f64::INFINITY, OVERFLOWS.len());
}

/// Such layers update statistics only after good steps, which the host has to know.
#[test]
fn layers_that_gather_are_told_by_a_host_that_looks() {
    let build = |stages: usize| {
        let model = Sequential::new()
            .layer("one", |p| nn::linear(p, 8, 8, nn::LinearConfig::default()))
            .layer("norm", |p| {
                layers::BatchNorm::new(p, 8, nn::BatchNormConfig::default())
            })
            .layer("two", |p| nn::linear(p, 8, 5, nn::LinearConfig::default()));
        Pipeline::builder(model)
            .devices(&cpus(stages))
            .micro_batches(2)
            .threads_per_stage(1)
            .on_non_finite(NonFinite::Skip)
    };
    same_everywhere(build, f64::NAN, OVERFLOWS.len());
}

/// Callers that read or add to parameters or gradients before the optimizer uses them see the state that a
/// host that checks would have left.
#[test]
fn a_verdict_is_heard_where_somebody_looks() {
    let run = |recorder: Option<&Recorder>| {
        single_threaded();
        let builder = Pipeline::builder(linears())
            .devices(&cpus(2))
            .micro_batches(2)
            .threads_per_stage(1)
            .on_non_finite(NonFinite::Skip);
        let builder = match recorder {
            Some(recorder) => builder.record_streams(recorder),
            None => builder,
        };
        let mut pipe = builder.build().unwrap();
        let mut optimizer = Optimizer::new(AdamW::default());
        let (x, y) = batch(&[6, 8], 6);
        let mut seen = Vec::new();
        for (round, factors) in [[1.0, f64::NAN], [f64::NAN, 1.0], [f64::NAN; 2], [1.0; 2]]
            .into_iter()
            .enumerate()
        {
            for factor in factors {
                let loss = move |out: &Tensor, y: &Tensor| cross_entropy(out, y) * factor;
                pipe.train_step(&x, &y, loss).unwrap();
                if round % 2 == 0 {
                    let own = pipe.parameters().unwrap().into_iter();
                    seen.extend(own.map(|(name, tensor)| {
                        let grad = tensor.grad();
                        let sum = grad.defined().then(|| grad.sum(Kind::Double));
                        (name, sum.map(|sum| sum.double_value(&[]).to_bits()))
                    }));
                }
            }
            let output = pipe
                .forward(&x)
                .unwrap()
                .sum(Kind::Double)
                .double_value(&[]);
            seen.push((format!("round {round}"), Some(output.to_bits())));
            optimizer.step(&mut pipe).unwrap();
        }
        (seen, snapshot(&mut pipe))
    };
    let (seen, weights) = run(None);
    let recorder = Recorder::new(&[Some(0), Some(1)]);
    let own = run(Some(&recorder));
    assert_eq!(own.0, seen);
    assert_same_bits(&own.1, &weights, "weights");
    recorder.check().unwrap();
}

/// The host notices a step later at the latest.
#[test]
fn a_scale_that_cannot_become_smaller_is_an_error_of_the_next_step() {
    let recorder = Recorder::new(&[Some(0), Some(1)]);
    let smallest = LossScale {
        initial: 1.0 / 16384.0,
        ..LossScale::default()
    };
    let mut pipe = Pipeline::builder(linears())
        .devices(&cpus(2))
        .micro_batches(2)
        .precision(Precision::Fp16)
        .loss_scale(smallest)
        .record_streams(&recorder)
        .build()
        .unwrap();
    let (x, y) = batch(&[6, 8], 6);
    let infinite = |out: &Tensor, y: &Tensor| cross_entropy(out, y) * f64::INFINITY;
    let before = snapshot(&mut pipe);
    let first = pipe.train_step(&x, &y, infinite).unwrap();
    assert!(first.read().unwrap().skipped());
    let error = pipe.train_step(&x, &y, infinite).unwrap_err().to_string();
    assert!(error.contains("a loss scale as small as"), "{error}");
    // Better steps continue the training.
    assert!(
        !pipe
            .train_step(&x, &y, cross_entropy)
            .unwrap()
            .read()
            .unwrap()
            .skipped()
    );
    assert_same_bits(&snapshot(&mut pipe), &before, "nothing was updated");
}

/// The loss of a micro-batch with weight 0 may be NaN: devices skip no step for it.
#[test]
fn what_counts_nothing_is_not_looked_at_by_devices_either() {
    let run = |recorder: Option<&Recorder>| {
        single_threaded();
        let builder = Pipeline::builder(linears())
            .devices(&cpus(2))
            .micro_batches(3)
            .threads_per_stage(1)
            .on_non_finite(NonFinite::Skip);
        let builder = match recorder {
            Some(recorder) => builder.record_streams(recorder),
            None => builder,
        };
        let mut pipe = builder.build().unwrap();
        let (x, y) = batch(&[6, 8], 6);
        // The targets of the second micro-batch begin with class 1.
        let loss = |out: &Tensor, y: &Tensor| match y.int64_value(&[0]) {
            1 => Loss::weighted(cross_entropy(out, y) * f64::NAN, 0.0),
            _ => Loss::weighted(cross_entropy(out, y), 2.0),
        };
        let report = pipe.train_step(&x, &y, loss).unwrap();
        assert_eq!(report.read().unwrap().non_finite, None);
        assert!(report.read().unwrap().loss.is_finite());
        (report.read().unwrap().loss.to_bits(), gradients(&mut pipe))
    };
    let (loss, here) = run(None);
    for places in [[Some(0), Some(1)], [Some(0), Some(0)]] {
        let recorder = Recorder::new(&places);
        let (told, there) = run(Some(&recorder));
        assert_eq!(told, loss);
        assert_same_bits(&there, &here, "on devices");
        recorder.check().unwrap();
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

/// Regression test: a layer that did not declare that it has no statistics made the host check the gradients
/// after each step that may be skipped. Now only actual statistics count: the devices get the same commands
/// as for the same model of libtorch's layers.
#[test]
fn the_host_looks_for_no_layer_that_only_computes() {
    let config = nn::LinearConfig::default();
    let silent = Sequential::new()
        .layer("one", move |p| Silent(nn::linear(p, 8, 8, config)))
        .layer("two", move |p| Silent(nn::linear(p, 8, 5, config)));
    let plain = Sequential::new()
        .layer("one", move |p| nn::linear(p, 8, 8, config))
        .layer("two", move |p| nn::linear(p, 8, 5, config));
    let summary = |model: Sequential| {
        let recorder = Recorder::new(&[Some(0), Some(1)]);
        let builder = Pipeline::builder(model)
            .devices(&cpus(2))
            .micro_batches(3)
            .threads_per_stage(1)
            .on_non_finite(NonFinite::Skip)
            .record_streams(&recorder);
        let _ = run(builder, AdamW::default().into(), 1.0, true);
        recorder.check().unwrap()
    };
    assert_eq!(summary(silent), summary(plain));
}
