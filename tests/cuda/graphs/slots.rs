//! When graphs are captured, how many, and when anew; and steps that are not like the one of the
//! capture.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use gpipe::partitioner::ScheduleKind;
use gpipe::tch::Tensor;
use gpipe::{Loss, Pipeline, report::GraphUse};

use super::pair::{Pair, WARM_UP, builder};
use crate::harness::Test;
use crate::support::everywhere::failing_at;
use crate::support::models;
use crate::support::{assert_same_bits, batch, cross_entropy, gradients, snapshot};

pub(super) fn tests() -> Vec<Test> {
    vec![
        (
            "graphs::a_slot_is_captured_once_for_a_micro_batch_in_flight",
            once,
        ),
        (
            "graphs::frozen_parameters_are_captured_anew_loaded_ones_not",
            anew,
        ),
        ("graphs::the_loss_may_be_another_one_every_step", losses),
        ("graphs::a_micro_batch_may_count_nothing", counts_nothing),
        (
            "graphs::gradients_of_inputs_and_of_several_steps",
            input_gradients,
        ),
        (
            "graphs::a_step_that_fails_is_undone_and_its_slots_used_again",
            undone,
        ),
        (
            "graphs::a_layer_that_fails_while_it_is_captured_is_named",
            named,
        ),
    ]
}

fn pair(schedule: ScheduleKind) -> Pair {
    Pair::new(|| builder(models::mlp().sequential(), schedule))
}

fn step(pair: &mut Pair) {
    let model = models::mlp();
    pair.step(&(model.batch)(8), || model.loss, "a step");
}

fn captured(pair: &mut Pair) -> Vec<u64> {
    pair.uses().iter().map(|used| used.captured).collect()
}

fn all_replay(uses: &[GraphUse], case: &str) {
    let replays = |used: &GraphUse| used.eager.is_none() && used.replayed > 0;
    assert!(uses.iter().all(replays), "{case}: {uses:?}");
}

/// Forward and backward; with the backward in two halves three graphs a slot.
fn once() {
    for (schedule, slots, graphs) in [
        (ScheduleKind::OneFOneB, [2, 1], 2),
        (ScheduleKind::GPipe, [4, 4], 2),
        (ScheduleKind::ZbH1, [2, 2], 3),
    ] {
        let mut pair = pair(schedule);
        (0..WARM_UP).for_each(|_| step(&mut pair));
        assert_eq!(captured(&mut pair), [0, 0], "{schedule}");
        step(&mut pair);
        let before = pair.uses();
        assert_eq!(
            captured(&mut pair),
            slots.map(|slots| slots * graphs),
            "{schedule}"
        );
        step(&mut pair);
        for (before, after) in before.iter().zip(pair.uses()) {
            assert_eq!(before.captured, after.captured, "{schedule}");
            assert_eq!(after.replayed - before.replayed, 4 * graphs, "{schedule}");
        }
        pair.finish("slots");
    }
}

fn anew() {
    let mut pair = pair(ScheduleKind::OneFOneB);
    let begin = snapshot(&mut pair.plain.pipe);
    (0..WARM_UP + 2).for_each(|_| step(&mut pair));
    let before = captured(&mut pair)[0];
    let mut after = |change: &dyn Fn(&mut Pipeline)| {
        change(&mut pair.plain.pipe);
        change(&mut pair.graphs.pipe);
        (0..2).for_each(|_| step(&mut pair));
        pair.finish("anew")[0].captured
    };
    assert_eq!(after(&|pipe| pipe.load(&begin).unwrap()), before);
    let biases = |name: &str| name.ends_with("bias");
    assert_eq!(after(&|pipe| pipe.freeze(biases).unwrap()), 2 * before);
    assert_eq!(after(&|pipe| pipe.unfreeze(biases).unwrap()), 3 * before);
}

fn losses() {
    let model = models::mlp();
    let mut pair = pair(ScheduleKind::OneFOneB);
    for step in 0..8 {
        let loss = || {
            move |out: &Tensor, y: &Tensor| {
                let weight = f64::from(step) + y.size()[0] as f64;
                Loss::weighted(out.cross_entropy_for_logits(y) * f64::from(step), weight)
            }
        };
        pair.step(&(model.batch)(8), loss, &format!("step {step}"));
    }
    all_replay(&pair.finish("losses"), "losses");
}

/// It returns no gradients, which must not count as a change of their layout.
fn counts_nothing() {
    let model = models::mlp();
    for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        let mut pair = pair(schedule);
        for step in 0..9 {
            let loss = || {
                let micro = AtomicUsize::new(0);
                move |out: &Tensor, y: &Tensor| {
                    let nothing = step % 2 == 0 && micro.fetch_add(1, SeqCst) == step / 2;
                    let weight = if nothing { 0.0 } else { 2.0 };
                    Loss::weighted(out.cross_entropy_for_logits(y), weight)
                }
            };
            pair.step(&(model.batch)(8), loss, &format!("{schedule}, step {step}"));
        }
        all_replay(&pair.finish("nothing counts"), "nothing counts");
    }
}

fn input_gradients() {
    let model = models::mlp();
    let mut pair = pair(ScheduleKind::OneFOneB);
    let (x, y) = (model.batch)(8);
    let x = x.set_requires_grad(true);
    for step in 0..WARM_UP + 4 {
        let of = |pipe: &mut Pipeline| {
            let report = pipe.train_step(&x, &y, model.loss).unwrap();
            report.input_gradient.unwrap().into_one().unwrap()
        };
        let plain = of(&mut pair.plain.pipe);
        assert!(plain.equal(&of(&mut pair.graphs.pipe)), "step {step}");
    }
    // Without updates in between, all steps' gradients have accumulated.
    let plain = gradients(&mut pair.plain.pipe);
    assert_same_bits(&plain, &gradients(&mut pair.graphs.pipe), "accumulated");
    all_replay(&pair.uses(), "inputs");
}

fn undone() {
    let model = models::mlp();
    for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
        for failing in WARM_UP..WARM_UP + 3 {
            let case = format!("{schedule}, step {failing}");
            let mut pair = pair(schedule);
            let batch = (model.batch)(8);
            for step in 0..WARM_UP + 4 {
                if step == failing {
                    for run in [&mut pair.plain, &mut pair.graphs] {
                        let seen = Arc::new(AtomicUsize::new(0));
                        let fails = move |out: &Tensor, y: &Tensor| {
                            let third = seen.fetch_add(1, SeqCst) % 3 == 2;
                            anyhow::ensure!(!third, "as asked");
                            anyhow::Ok(out.cross_entropy_for_logits(y))
                        };
                        let error = run.step(&batch, fails).unwrap_err().to_string();
                        assert!(error.contains("as asked"), "{case}: {error}");
                    }
                }
                pair.step(&batch, || model.loss, &case);
            }
            all_replay(&pair.finish(&case), &case);
        }
    }
}

fn named() {
    // Four runs a step before it.
    let capture = 4 * WARM_UP + 1;
    let runs = AtomicUsize::new(0);
    let mut pair = Pair::new(|| {
        let first = runs.fetch_add(1, SeqCst) == 0;
        let model = failing_at(if first { 0 } else { capture });
        builder(model, ScheduleKind::GPipe).balance(&[2, 1])
    });
    for step in 0..WARM_UP + 3 {
        pair.step(
            &batch(&[8, 8], 8),
            || cross_entropy,
            &format!("step {step}"),
        );
    }
    let uses = pair.finish("named");
    let why = uses[0].eager.as_deref();
    assert_eq!(why, Some("its capture failed in layer `two`: as asked"));
    assert_eq!((uses[0].captured, uses[0].replayed), (0, 0));
    assert_eq!(uses[1].eager, None);
}
