//! Replicas of a pipeline (data parallelism), against one pipeline with the same tree of gradient sums: a
//! step, an update and a checkpoint apply to all copies or to none. tests/parity covers all models and
//! schedules.

mod refused;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpipe::checkpoint::{Checkpoint, Checkpointer, Extras};
use gpipe::partitioner::{ActionKind, DeviceId, ScheduleKind, Shape, StageId};
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Error, Layer, Loss, Optimizer, Pipeline, PipelineBuilder, Sequential, Values,
    error::{NonFinite, Setting},
    layers::{self, Context, StepState},
    optim::AdamW,
    settings::{LossScale, Precision, Recompute},
};

use crate::support::*;

const LEAVES: usize = 4;
const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Batch norm whose statistics are updated once per step, dropout, and a head tied to the first layer.
fn model() -> Sequential {
    Sequential::new()
        .layer("first", |p| {
            nn::linear(p, 6, 6, nn::LinearConfig::default())
        })
        .layer("norm", |p| {
            layers::BatchNorm::new(p, 6, nn::BatchNormConfig::default())
        })
        .layer("dropout", |_| nn::func_t(|x, train| x.dropout(0.2, train)))
        .layer("last", |p| nn::linear(p, 6, 6, nn::LinearConfig::default()))
        .layer("second", |p| {
            layers::BatchNorm::new(p, 6, nn::BatchNormConfig::default())
        })
        .layer("out", |p| nn::linear(p, 6, 3, nn::LinearConfig::default()))
        .tie("first.weight", "last.weight")
}

fn batch(samples: i64) -> (Tensor, Tensor) {
    // Not from libtorch's generator, which all tests of the process share.
    let x = Tensor::arange(samples * 6, FLOAT) * 0.7;
    let x = x.sin().view([samples, 6]) * 1.5;
    let y = Tensor::arange(samples, (Kind::Int64, Device::Cpu));
    (x, y.remainder(3))
}

/// Replicas of two devices, with eight micro-batches.
fn builder(replicas: usize) -> PipelineBuilder {
    Pipeline::builder(model())
        .devices(&cpus(2 * replicas))
        .replicas(replicas)
        .tree(LEAVES)
        .micro_batches(8)
        .threads_per_stage(1)
        .seed(3)
}

fn optimizer() -> Optimizer {
    Optimizer::new(AdamW {
        lr: 0.01,
        ..AdamW::default()
    })
}

/// Runs the same on replicas and on one pipeline, and compares the final state: the parameters and buffers of
/// the first copies, and the outputs of all copies in inference.
fn same_as_one(
    configure: impl Fn(PipelineBuilder) -> PipelineBuilder,
    run: impl Fn(&mut Pipeline, usize) -> Vec<f64>,
) {
    single_threaded();
    let variants = [(1, false), (2, false), (2, true), (4, false), (4, true)];
    let mut all = variants.map(|(replicas, sharded)| {
        let builder = builder(replicas).shard_optimizer(sharded);
        let mut pipe = configure(builder).build().unwrap();
        let numbers = run(&mut pipe, replicas);
        let gradients = gradients(&mut pipe);
        let outputs = pipe.forward(&batch(24).0).unwrap();
        let what = format!("{replicas} replicas, sharded {sharded}");
        (what, numbers, gradients, snapshot(&mut pipe), outputs)
    });
    let [(_, numbers, gradients, values, outputs), others @ ..] = &mut all;
    for (what, own, own_gradients, own_values, own_outputs) in others {
        let bits = |all: &[f64]| all.iter().map(|own| own.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(own), bits(numbers), "{what}: {own:?}, not {numbers:?}");
        assert_same_bits(own_gradients, gradients, what);
        assert_same_bits(own_values, values, what);
        assert!(own_outputs.equal(outputs), "{what}: outputs");
    }
}

fn trained(pipe: &mut Pipeline, optimizer: &mut Optimizer, samples: i64) -> f64 {
    let (x, y) = batch(samples);
    let loss = pipe.train_step(&x, &y, cross_entropy).unwrap();
    optimizer.step(pipe).unwrap();
    loss.read().unwrap().loss
}

#[test]
fn statistics_dropout_and_ties_are_those_of_one_pipeline() {
    for recompute in [Recompute::Never, Recompute::ExceptLast, Recompute::Always] {
        let configure = |builder: PipelineBuilder| builder.recompute(recompute.clone());
        same_as_one(configure, |pipe, _| {
            let mut optimizer = optimizer();
            let losses = (0..3).map(|_| trained(pipe, &mut optimizer, 24)).collect();
            let (x, y) = batch(24);
            pipe.train_step(&x, &y, cross_entropy).unwrap();
            losses
        });
    }
}

/// Of three micro-batches four replicas get none, one, one and one.
#[test]
fn short_batches_leave_replicas_without_micro_batches() {
    // Batch norm needs at least two samples per micro-batch: six samples in three micro-batches.
    let configure = |builder: PipelineBuilder| builder.micro_batches(3);
    same_as_one(configure, |pipe, _| {
        let mut optimizer = optimizer();
        let step = |_| {
            let (x, y) = batch(6);
            let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
            // A replica without a gradient now has a separate one, which is scaled once.
            let norm = pipe.clip_grad_norm(0.05).unwrap();
            optimizer.step(pipe).unwrap();
            [report.read().unwrap().loss, norm]
        };
        (0..2).flat_map(step).collect()
    });
}

/// Fewer samples than micro-batches make fewer micro-batches.
#[test]
fn batches_of_fewer_samples_than_micro_batches() {
    single_threaded();
    let small = || {
        Sequential::new()
            .layer("first", |p| {
                nn::linear(p, 6, 4, nn::LinearConfig::default())
            })
            .layer("out", |p| nn::linear(p, 4, 3, nn::LinearConfig::default()))
    };
    let build = |replicas: usize| {
        let builder = Pipeline::builder(small()).devices(&cpus(2 * replicas));
        // Of eight leaves, a replica's last one may be absent.
        let builder = builder.replicas(replicas).tree(8).micro_batches(8);
        builder.threads_per_stage(1).build().unwrap()
    };
    for samples in 1..=9 {
        let (x, y) = batch(samples);
        let x = x.set_requires_grad(true);
        let step = |replicas: usize| {
            let mut pipe = build(replicas);
            let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
            let loss = report.read().unwrap().loss;
            let input = report.input_gradient.unwrap().into_one().unwrap();
            let output = pipe.forward(x.detach()).unwrap();
            (loss, gradients(&mut pipe), input, output)
        };
        let (loss, plain, input, output) = step(1);
        for replicas in [2, 4] {
            let what = format!("{samples} samples, {replicas} replicas");
            let own = step(replicas);
            assert_eq!(own.0.to_bits(), loss.to_bits(), "{what}");
            assert_same_bits(&own.1, &plain, &what);
            assert!(own.2.equal(&input), "{what}: the input's gradient");
            assert!(own.3.equal(&output), "{what}: outputs");
        }
    }
}

#[test]
fn gradients_of_several_steps_add_up_and_are_clipped() {
    same_as_one(
        |builder| builder,
        |pipe, _| {
            let mut optimizer = optimizer();
            let mut numbers = Vec::new();
            for samples in [24, 16] {
                let (x, y) = batch(samples);
                let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
                numbers.push(report.read().unwrap().loss);
            }
            numbers.push(pipe.clip_grad_norm(0.05).unwrap());
            optimizer.step(pipe).unwrap();
            numbers.push(pipe.clip_grad_norm(0.05).unwrap());
            pipe.freeze(|name| name == "out.bias").unwrap();
            numbers.push(trained(pipe, &mut optimizer, 24));
            numbers
        },
    );
}

/// The sum of a mini-batch's loss weights is known only when all replicas are done.
#[test]
fn weighted_losses() {
    same_as_one(
        |builder| builder,
        |pipe, _| {
            let (x, y) = batch(24);
            let loss = |out: &Tensor, y: &Tensor| {
                let weight = y.sum(Kind::Float).double_value(&[]);
                Loss::weighted(cross_entropy(out, y), weight)
            };
            let report = pipe.train_step(&x, &y, loss).unwrap();
            vec![report.read().unwrap().loss]
        },
    );
}

/// A normal loss until armed; then `does` is applied to it in the micro-batch with sample 22.
fn armed(
    does: fn(Tensor) -> Tensor,
) -> (
    Arc<AtomicBool>,
    impl Fn(&Tensor, &Tensor) -> Tensor + Clone + Send + Sync,
) {
    let armed = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&armed);
    let loss = move |out: &Tensor, y: &Tensor| {
        let found = y.eq(22).any().int64_value(&[]) == 1;
        let loss = cross_entropy(out, &y.remainder(3));
        if own.load(Ordering::SeqCst) && found {
            does(loss)
        } else {
            loss
        }
    };
    (armed, loss)
}

fn numbered(samples: i64) -> (Tensor, Tensor) {
    let y = Tensor::arange(samples, (Kind::Int64, Device::Cpu));
    (batch(samples).0, y)
}

#[test]
fn an_overflow_in_one_replica_skips_the_step_in_all() {
    let configure = |builder: PipelineBuilder| {
        let scale = LossScale {
            initial: 256.0,
            ..LossScale::default()
        };
        builder.precision(Precision::Fp16).loss_scale(scale)
    };
    same_as_one(configure, |pipe, replicas| {
        let (armed, loss) = armed(|loss| loss * 1e9);
        let (x, y) = numbered(24);
        let mut optimizer = optimizer();
        let mut numbers = Vec::new();
        for step in 0..3 {
            armed.store(step == 1, Ordering::SeqCst);
            let before = (snapshot(pipe), gradients(pipe));
            let report = pipe.train_step(&x, &y, loss.clone()).unwrap();
            let read = report.read().unwrap();
            assert_eq!(read.skipped(), step == 1, "{replicas} replicas");
            numbers.extend([read.loss_scale.unwrap(), read.loss]);
            if step == 1 {
                assert_same_bits(&snapshot(pipe), &before.0, "a step that was skipped");
                assert_same_bits(&gradients(pipe), &before.1, "a step that was skipped");
            }
            optimizer.step(pipe).unwrap();
        }
        numbers
    });
}

#[test]
fn a_failure_in_one_replica_undoes_the_step_in_all() {
    for non_finite in [NonFinite::Allow, NonFinite::Skip] {
        let configure = |builder: PipelineBuilder| builder.on_non_finite(non_finite);
        same_as_one(configure, |pipe, replicas| {
            let (armed, loss) = armed(|_| panic!("in one micro-batch"));
            let (x, y) = numbered(24);
            let mut optimizer = optimizer();
            pipe.train_step(&x, &y, loss.clone()).unwrap();
            let before = (snapshot(pipe), gradients(pipe));
            armed.store(true, Ordering::SeqCst);
            let error = pipe.train_step(&x, &y, loss.clone()).unwrap_err();
            let error = error.to_string();
            let named = format!("replica {}", replicas - 1);
            assert!(replicas == 1 || error.contains(&named), "{error}");
            assert_same_bits(&snapshot(pipe), &before.0, "a step that failed");
            assert_same_bits(&gradients(pipe), &before.1, "a step that failed");
            armed.store(false, Ordering::SeqCst);
            let report = pipe.train_step(&x, &y, loss).unwrap();
            optimizer.step(pipe).unwrap();
            vec![report.read().unwrap().loss]
        });
    }
}

#[test]
fn a_checkpoint_of_some_replicas_is_resumed_with_others() {
    single_threaded();
    let whole = {
        let (mut pipe, mut optimizer) = (builder(1).build().unwrap(), optimizer());
        let losses: Vec<_> = (0..4)
            .map(|_| trained(&mut pipe, &mut optimizer, 24))
            .collect();
        (
            losses,
            snapshot(&mut pipe),
            pipe.forward(&batch(24).0).unwrap(),
        )
    };
    let sharded = [
        (2, true, 1, false),
        (1, false, 4, true),
        (4, true, 2, true),
        (2, false, 2, true),
    ];
    let plain = [(1, 2), (2, 1), (2, 4), (4, 2)].map(|(a, b)| (a, false, b, false));
    for (before, sharded_before, after, sharded) in plain.into_iter().chain(sharded) {
        let what = format!("{before} replicas ({sharded_before}), then {after} ({sharded})");
        let folder = tempfile::tempdir().unwrap();
        let builder_before = builder(before).shard_optimizer(sharded_before);
        let (mut pipe, mut own) = (builder_before.build().unwrap(), optimizer());
        let mut losses: Vec<_> = (0..2).map(|_| trained(&mut pipe, &mut own, 24)).collect();
        let mut checkpointer = Checkpointer::new(folder.path()).unwrap();
        checkpointer.save(&mut pipe, &own, Extras::new(2)).unwrap();
        checkpointer.finish().unwrap();
        let saved = Checkpoint::newest(folder.path()).unwrap();
        assert_eq!(saved.stages(), 2, "{what}");
        let builder = builder(after).shard_optimizer(sharded);
        let (mut pipe, mut own) = (builder.seed(9).build().unwrap(), optimizer());
        saved.restore(&mut pipe, &mut own).unwrap();
        losses.extend((0..2).map(|_| trained(&mut pipe, &mut own, 24)));
        assert_eq!(losses, whole.0, "{what}");
        assert_same_bits(&snapshot(&mut pipe), &whole.1, &what);
        assert!(
            pipe.forward(&batch(24).0).unwrap().equal(&whole.2),
            "{what}"
        );
    }
}

/// `load` fills every copy.
#[test]
fn loaded_values_are_those_of_all_copies() {
    let (mut other, mut own) = (builder(1).seed(8).build().unwrap(), optimizer());
    trained(&mut other, &mut own, 24);
    let values = snapshot(&mut other);
    same_as_one(
        |builder| builder,
        |pipe, _| {
            pipe.load(&values).unwrap();
            Vec::new()
        },
    );
}

fn setting(builder: PipelineBuilder) -> Setting {
    match (builder.check(), builder.build()) {
        (Err(Error::Settings(one)), Err(Error::Settings(two))) => {
            assert_eq!(one, two);
            one.setting
        }
        (one, two) => panic!("{one:?}, {:?}", two.err()),
    }
}

#[test]
fn a_schedule_of_ones_own_is_that_of_each_replica() {
    single_threaded();
    let schedule = ScheduleKind::ZbH1.generate(Shape::new(2, 4)).unwrap();
    let mut own = builder(2).custom_schedule(schedule.clone()).build();
    // Numbers requested before do not count: the schedule decides.
    let own = own.as_mut().unwrap();
    let mut plain = builder(1).build().unwrap();
    let (x, y) = batch(24);
    for pipe in [&mut *own, &mut plain] {
        pipe.train_step(&x, &y, cross_entropy).unwrap();
    }
    assert_same_bits(&gradients(own), &gradients(&mut plain), "zb-h1");
    let short = own.train_step(&batch(7).0, &batch(7).1, cross_entropy);
    let error = short.unwrap_err().to_string();
    assert!(error.contains("8 micro-batches"), "{error}");
    let wrong = builder(2).custom_schedule(schedule).micro_batches(4);
    assert_eq!(setting(wrong), Setting::MicroBatches);
}

/// The timeline covers all devices, the prediction one replica.
#[test]
fn all_devices_are_in_the_timeline() {
    let recompute = Recompute::ExceptLast;
    let builder = builder(2).measure_memory(true).recompute(recompute);
    let mut pipe = builder.build().unwrap();
    let (x, y) = batch(24);
    let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
    let read = report.read().unwrap();
    assert_eq!(
        (read.timeline.devices(), read.predicted().devices()),
        (4, 2)
    );
    let actions = |kind: ActionKind| {
        let devices = (0..4).map(DeviceId);
        let all = devices.flat_map(|device| read.timeline.spans_on(device));
        let all = all.map(|span| span.action).filter(|own| own.kind == kind);
        let of_stage = all.filter(|own| own.stage == StageId(0));
        of_stage.map(|own| own.micro.index()).collect::<Vec<_>>()
    };
    assert_eq!(actions(ActionKind::Forward), [0, 1, 2, 3, 4, 5, 6, 7]);
    // All but the last of the mini-batch.
    assert_eq!(actions(ActionKind::Recompute), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!((pipe.replicas(), pipe.devices().len()), (2, 2));
    assert_eq!(report.memory.unwrap().stages.len(), 2);
}
