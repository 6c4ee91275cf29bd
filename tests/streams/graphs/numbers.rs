//! Graphs change no number.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use gpipe::partitioner::{ScheduleKind, Shape};
use gpipe::tch::{Kind, Tensor};
use gpipe::{Loss, report::GraphUse, settings::Precision};

use super::setup::{Pair, Setup, WARM_UP};
use crate::support::models::{self, Model};
use crate::support::single_threaded;

fn same(model: &Model, setup: &Setup) -> bool {
    single_threaded();
    let chunks = setup.schedule.default_chunks();
    let shape = Shape::new(setup.stages, setup.micro_batches).with_chunks(chunks);
    if setup.schedule == ScheduleKind::ForwardOnly
        || shape.stages() > model.parts.len()
        || setup.schedule.generate(shape).is_err()
    {
        return false;
    }
    let case = format!("{} {} {}", model.name, setup.schedule, setup.stages);
    let mut pair = Pair::new(setup, || setup.builder(model.sequential()));
    let batch = (model.batch)(8);
    for _ in 0..WARM_UP + 3 {
        pair.step(&batch, || model.loss, &case);
    }
    let uses = pair.finish(&case);
    assert_eq!(uses.len(), shape.stages(), "{case}");
    for (stage, used) in uses.iter().enumerate() {
        assert_eq!(used.eager, None, "{case}, stage {stage}");
        assert!(used.captured >= 2, "{case}, stage {stage}: {used:?}");
        assert!(
            used.replayed > used.captured,
            "{case}, stage {stage}: {used:?}"
        );
    }
    true
}

#[test]
fn every_schedule_has_the_same_bits() {
    let mut cases = 0;
    for schedule in ScheduleKind::ALL {
        let setup = Setup {
            stages: 2,
            micro_batches: 4,
            schedule,
        };
        cases += usize::from(same(&models::mlp(), &setup));
    }
    assert!(cases > 6, "{cases}");
}

#[test]
fn every_kind_of_edge_has_the_same_bits() {
    // Skips that cross stages, several outputs, tied parameters, attention, and layers that read buffers
    // updated by earlier micro-batches.
    for model in [
        models::unet(),
        models::multi_output(),
        models::tied(),
        models::transformer(0.0),
        models::moving(),
    ] {
        for (stages, schedule) in [(3, ScheduleKind::OneFOneB), (2, ScheduleKind::ZbH1)] {
            let setup = Setup {
                stages,
                micro_batches: 4,
                schedule,
            };
            assert!(same(&model, &setup), "{}", model.name);
        }
    }
}

#[test]
fn batches_may_be_of_any_size() {
    single_threaded();
    let model = models::mlp();
    let setup = Setup {
        stages: 2,
        micro_batches: 3,
        schedule: ScheduleKind::OneFOneB,
    };
    let mut pair = Pair::new(&setup, || setup.builder(model.sequential()));
    for (step, samples) in [8, 8, 8, 8, 5, 8, 8, 2, 8, 5, 8].into_iter().enumerate() {
        let batch = (model.batch)(samples);
        pair.step(&batch, || model.loss, &format!("step {step}"));
    }
    assert!(
        pair.finish("uneven")
            .iter()
            .all(|used| used.eager.is_none())
    );
}

#[test]
fn the_loss_may_be_another_one_every_step() {
    single_threaded();
    let model = models::mlp();
    let setup = Setup {
        stages: 2,
        micro_batches: 4,
        schedule: ScheduleKind::OneFOneB,
    };
    let mut pair = Pair::new(&setup, || {
        setup.builder(model.sequential()).precision(Precision::Bf16)
    });
    let batch = (model.batch)(8);
    for step in 0..8 {
        let loss = || {
            move |out: &Tensor, y: &Tensor| {
                Loss::weighted(
                    out.cross_entropy_for_logits(y) * f64::from(step),
                    f64::from(step) + y.size()[0] as f64,
                )
            }
        };
        pair.step(&batch, loss, &format!("step {step}"));
    }
    let uses = pair.finish("losses");
    assert!(uses.iter().all(|used| used.eager.is_none()), "{uses:?}");
}

/// Gradients leave the parameters at the end of a leaf, and the next ones are set, not added.
#[test]
fn sums_in_a_tree_have_the_same_bits() {
    single_threaded();
    for model in [models::mlp(), models::tied()] {
        for (stages, schedule) in [(3, ScheduleKind::OneFOneB), (2, ScheduleKind::ZbH1)] {
            for leaves in [4, 8] {
                let setup = Setup {
                    stages,
                    micro_batches: 6,
                    schedule,
                };
                let case = format!("{} {schedule} k={leaves}", model.name);
                let mut pair = Pair::new(&setup, || setup.builder(model.sequential()).tree(leaves));
                let batch = (model.batch)(12);
                for _ in 0..WARM_UP + 3 {
                    pair.step(&batch, || model.loss, &case);
                }
                let replays = |used: &GraphUse| used.eager.is_none() && used.replayed > 0;
                assert!(pair.finish(&case).iter().all(replays), "{case}");
            }
        }
    }
}

/// It returns no gradients, which must not count as a change of their layout.
#[test]
fn a_micro_batch_that_counts_nothing_leaves_the_graphs_as_they_are() {
    single_threaded();
    let model = models::mlp();
    for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        let setup = Setup {
            stages: 2,
            micro_batches: 4,
            schedule,
        };
        let mut pair = Pair::new(&setup, || setup.builder(model.sequential()));
        let batch = (model.batch)(8);
        for step in 0..9 {
            let loss = || {
                let micro = AtomicUsize::new(0);
                move |out: &Tensor, y: &Tensor| {
                    let nothing = step % 2 == 0 && micro.fetch_add(1, Relaxed) == step / 2;
                    let weight = if nothing { 0.0 } else { 2.0 };
                    Loss::weighted(out.cross_entropy_for_logits(y), weight)
                }
            };
            pair.step(&batch, loss, &format!("{schedule:?}, step {step}"));
        }
        let uses = pair.finish("nothing counts");
        let replays = |used: &GraphUse| used.eager.is_none() && used.replayed > 0;
        assert!(uses.iter().all(replays), "{uses:?}");
    }
}

#[test]
fn gradients_of_inputs_and_of_several_steps_are_the_same() {
    single_threaded();
    let model = models::mlp();
    let setup = Setup {
        stages: 2,
        micro_batches: 4,
        schedule: ScheduleKind::OneFOneB,
    };
    let mut pair = Pair::new(&setup, || setup.builder(model.sequential()));
    let (x, y) = (model.batch)(8);
    let x = x.set_requires_grad(true);
    for step in 0..WARM_UP + 4 {
        let of = |pipe: &mut gpipe::Pipeline| {
            let report = pipe.train_step(&x, &y, model.loss).unwrap();
            report.input_gradient.unwrap().into_one().unwrap()
        };
        let plain = of(&mut pair.plain.pipe);
        let graphs = of(&mut pair.graphs.pipe);
        assert!(plain.equal(&graphs), "step {step}");
        assert_eq!(plain.kind(), Kind::Float);
    }
    // Without updates in between, all steps' gradients have accumulated.
    let plain = crate::support::gradients(&mut pair.plain.pipe);
    let graphs = crate::support::gradients(&mut pair.graphs.pipe);
    crate::support::assert_same_bits(&plain, &graphs, "accumulated");
    assert!(pair.finish("inputs").iter().all(|used| used.replayed > 0));
}
