//! Pipelines of all kinds against the definition.

use gpipe::partitioner::{Action, ActionKind, Bytes, CheckedSchedule, Schedule};
use gpipe::partitioner::{ScheduleKind, Shape};
use gpipe::tch::{Tensor, nn};
use gpipe::{Loss, Pipeline, PipelineBuilder, settings::Recompute};

use super::oracle::{LEAVES, Oracle, assert_bits, bits, sums};
use crate::support::models::{self, Model};
use crate::support::reference::Named;
use crate::support::*;

/// More than the largest number of micro-batches, so that some have one sample and some two.
const SAMPLES: i64 = 13;
const MICRO_BATCHES: std::ops::RangeInclusive<usize> = 1..=9;
const RECOMPUTE: [Recompute; 3] = [Recompute::Never, Recompute::ExceptLast, Recompute::Always];

fn builder(model: &Model, stages: usize) -> PipelineBuilder {
    Pipeline::builder(model.sequential())
        .devices(&cpus(stages))
        .threads_per_stage(1)
        .seed(7)
}

/// Gradients of one step of a new pipeline.
fn step(builder: PipelineBuilder, model: &Model) -> Named {
    let mut pipe = builder.build().unwrap();
    let (x, y) = (model.batch)(SAMPLES);
    pipe.train_step(&x, &y, model.loss).unwrap();
    gradients(&mut pipe)
}

fn oracle(model: &Model, micro_batches: usize) -> Oracle {
    single_threaded();
    let mut pipe = builder(model, 1).build().unwrap();
    let (x, y) = (model.batch)(SAMPLES);
    Oracle::new(model, &mut pipe, (&x, &y), micro_batches)
}

/// Additional settings of the stages, varying by case.
fn besides(builder: PipelineBuilder, case: usize, stages: usize) -> PipelineBuilder {
    let offload: Vec<usize> = (0..stages).filter(|_| case % 2 == 1).collect();
    builder
        .recompute(RECOMPUTE[case % 3].clone())
        .offload(&offload)
        .offload_at_least(Bytes(0))
}

/// One of `EVERY` cases runs: all values of an axis, and most combinations.
const EVERY: usize = 5;

/// Returns the number of cases run.
fn every_schedule(model: &Model, devices: &[usize]) -> usize {
    let (mut case, mut run) = (0, 0);
    for micro in MICRO_BATCHES {
        let oracle = oracle(model, micro);
        for leaves in LEAVES {
            let expected = oracle.sums(leaves);
            for schedule in ScheduleKind::ALL {
                for &devices in devices {
                    let chunks = schedule.default_chunks();
                    let shape = Shape::new(devices, micro).with_chunks(chunks);
                    if schedule == ScheduleKind::ForwardOnly
                        || shape.stages() > model.parts.len()
                        || schedule.generate(shape).is_err()
                    {
                        continue;
                    }
                    case += 1;
                    if case % EVERY != 0 {
                        continue;
                    }
                    run += 1;
                    let builder = builder(model, devices)
                        .micro_batches(micro)
                        .schedule(schedule)
                        .tree(leaves);
                    let own = step(besides(builder, run, shape.stages()), model);
                    let what = format!(
                        "{}: k={leaves} m={micro} p={devices} {schedule}, case {case}",
                        model.name
                    );
                    assert_bits(&own, &expected, &what);
                }
            }
        }
    }
    run
}

#[test]
fn every_schedule_and_cut_adds_as_the_tree_is_defined() {
    let cases = every_schedule(&models::mlp(), &[1, 2, 3, 4]);
    assert!(cases > 180, "{cases}");
}

/// A layer that uses its parameters only for some micro-batches.
fn sometimes() -> Model {
    let mut model = Model::new("sometimes", mlp_batch, cross_entropy).layer("sometimes", |path| {
        let linear = nn::linear(path, 12, 12, nn::LinearConfig::default());
        Box::new(move |x, _| match x.double_value(&[0, 0]) {
            first if first > 0.0 => x.apply(&linear),
            _ => x.shallow_clone(),
        })
    });
    for (name, build) in mlp() {
        model = model.layer(name, move |path| {
            let module = build(path);
            Box::new(move |x, pass| module.forward_t(x, pass.train()))
        });
    }
    model
}

/// Skips, batch norm, several outputs, tied parameters, updated buffers, absent gradients.
#[test]
fn every_kind_of_model_adds_as_the_tree_is_defined() {
    for model in [
        models::unet(),
        models::convnet(),
        models::multi_output(),
        models::tied(),
        models::moving(),
        sometimes(),
    ] {
        let cases = every_schedule(&model, &[3]);
        assert!(cases > 20, "{}: {cases}", model.name);
    }
}

#[test]
fn gradients_are_absent_from_leaves_of_the_model_that_is_to_have_some() {
    let (x, _) = mlp_batch(SAMPLES);
    let used = |row: i64| x.double_value(&[row, 0]) > 0.0;
    let used: Vec<bool> = (0..SAMPLES).map(used).collect();
    assert!(used.contains(&true) && used.contains(&false), "{used:?}");
}

/// Shows that the other tests can fail.
#[test]
fn other_leaves_have_other_bits() {
    let oracle = oracle(&models::mlp(), 9);
    let all: Vec<_> = LEAVES.map(|leaves| bits(&oracle.sums(leaves))).into();
    for (place, one) in all.iter().enumerate() {
        for other in &all[..place] {
            assert_ne!(one, other);
        }
    }
}

/// Forwards, then backwards (or their halves) in this order of the micro-batches.
fn in_order(stages: usize, order: &[usize], split: bool) -> CheckedSchedule {
    let list = |stage: usize| {
        let of = |kind| move |micro: usize| Action::new(stage, kind, micro);
        let forwards = (0..order.len()).map(of(ActionKind::Forward));
        let backwards: Vec<Action> = if split {
            let inputs = (0..order.len()).map(of(ActionKind::BackwardInput));
            let weights = order.iter().copied().map(of(ActionKind::BackwardWeight));
            inputs.chain(weights).collect()
        } else {
            let all = order.iter().copied();
            all.map(of(ActionKind::Backward)).collect()
        };
        forwards.chain(backwards).collect()
    };
    let lists = (0..stages).map(list).collect();
    let schedule = Schedule::new("in another order", stages, order.len(), lists);
    schedule.check().unwrap()
}

#[test]
fn micro_batches_may_come_back_in_any_order() {
    for model in [models::mlp(), models::tied(), sometimes()] {
        let oracle = oracle(&model, 6);
        for leaves in LEAVES {
            let expected = oracle.sums(leaves);
            for order in [
                [5, 4, 3, 2, 1, 0],
                [1, 0, 3, 2, 5, 4],
                [3, 4, 0, 5, 1, 2],
                [0, 2, 1, 5, 3, 4],
            ] {
                for (stages, split) in [(1, false), (1, true), (3, false), (3, true)] {
                    let schedule = in_order(stages, &order, split);
                    let builder = builder(&model, stages).custom_schedule(schedule);
                    let own = step(builder.tree(leaves), &model);
                    let what = format!("{}: k={leaves} p={stages} {order:?}", model.name);
                    assert_bits(&own, &expected, &format!("{what}, in halves: {split}"));
                }
            }
        }
    }
}

/// A plain model cannot draw a pipeline's masks, but a pipeline with only one counted micro-batch can.
#[test]
fn masks_of_dropout_are_those_of_the_micro_batch() {
    const MICRO: usize = 8;
    const CLASSES: i64 = 7;
    let model = models::transformer(0.3);
    let (x, y) = (model.batch)(MICRO as i64);
    // Targets encode their micro-batch.
    let micros = Tensor::arange(MICRO as i64, gpipe::tch::kind::INT64_CPU);
    let y = y + micros.unsqueeze(1) * CLASSES;
    let loss = |counts: Option<i64>| {
        let loss = model.loss;
        move |out: &Tensor, y: &Tensor| {
            let micro = y.int64_value(&[0, 0]) / CLASSES;
            let own = counts.is_none_or(|counts| counts == micro);
            Loss::weighted(loss(out, &y.remainder(CLASSES)), f64::from(u8::from(own)))
        }
    };
    let step = |builder: PipelineBuilder, counts: Option<i64>| {
        let mut pipe = builder.micro_batches(MICRO).build().unwrap();
        pipe.train_step(&x, &y, loss(counts)).unwrap();
        gradients(&mut pipe)
    };
    let of_each = (0..MICRO as i64).map(|micro| step(builder(&model, 1), Some(micro)));
    let of_each: Vec<Named> = of_each.collect();
    for leaves in LEAVES {
        // Divides by the sum of all weights.
        let expected = sums(&of_each, leaves).into_iter();
        let expected = expected.map(|(name, sum)| (name, sum / MICRO as f64));
        let expected: Named = expected.collect();
        for (case, stages) in [1, 2, 4].into_iter().enumerate() {
            let builder = besides(builder(&model, stages), case, stages).tree(leaves);
            let own = step(builder, None);
            assert_bits(&own, &expected, &format!("k={leaves} p={stages}"));
        }
    }
}
