//! When graphs are captured, how many, and when they are recaptured.

use gpipe::partitioner::ScheduleKind;

use super::setup::{Pair, Setup, WARM_UP};
use crate::support::models;
use crate::support::single_threaded;

fn pair(schedule: ScheduleKind) -> Pair {
    single_threaded();
    let model = models::mlp();
    let setup = Setup {
        stages: 2,
        micro_batches: 4,
        schedule,
    };
    Pair::new(&setup, || setup.builder(model.sequential()))
}

fn step(pair: &mut Pair) {
    let model = models::mlp();
    pair.step(&(model.batch)(8), || model.loss, "a step");
}

fn counts(pair: &mut Pair) -> Vec<(u64, u64)> {
    let uses = pair.uses();
    uses.iter()
        .map(|used| (used.captured, used.replayed))
        .collect()
}

#[test]
fn a_slot_a_micro_batch_in_flight_is_captured_once_after_the_warm_up() {
    // Forward and backward; a split backward gives three graphs per slot.
    for (schedule, slots, graphs) in [
        (ScheduleKind::OneFOneB, [2, 1], 2),
        (ScheduleKind::GPipe, [4, 4], 2),
        (ScheduleKind::ZbH1, [2, 2], 3),
    ] {
        let mut pair = pair(schedule);
        for _ in 0..WARM_UP {
            step(&mut pair);
        }
        assert_eq!(counts(&mut pair), [(0, 0), (0, 0)], "{schedule}");
        step(&mut pair);
        let captured: Vec<u64> = counts(&mut pair).iter().map(|(all, _)| *all).collect();
        assert_eq!(captured, slots.map(|slots| slots * graphs), "{schedule}");
        let before = counts(&mut pair);
        step(&mut pair);
        let after = counts(&mut pair);
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before.0, after.0, "{schedule}: nothing is captured twice");
            assert_eq!(
                after.1 - before.1,
                4 * graphs,
                "{schedule}: all is replayed"
            );
        }
        pair.finish("slots");
    }
}

#[test]
fn parameters_that_are_frozen_later_are_captured_anew() {
    let mut pair = pair(ScheduleKind::OneFOneB);
    for _ in 0..WARM_UP + 2 {
        step(&mut pair);
    }
    let before = counts(&mut pair);
    let first = |name: &str| name.ends_with("bias");
    pair.plain.pipe.freeze(first).unwrap();
    pair.graphs.pipe.freeze(first).unwrap();
    step(&mut pair);
    step(&mut pair);
    let after = counts(&mut pair);
    assert_eq!(after[0].0, 2 * before[0].0);
    pair.plain.pipe.unfreeze(first).unwrap();
    pair.graphs.pipe.unfreeze(first).unwrap();
    step(&mut pair);
    assert_eq!(counts(&mut pair)[0].0, 3 * before[0].0);
    pair.finish("frozen");
}

#[test]
fn loaded_values_reach_the_graphs() {
    let mut pair = pair(ScheduleKind::OneFOneB);
    let begin = crate::support::snapshot(&mut pair.plain.pipe);
    for _ in 0..WARM_UP + 2 {
        step(&mut pair);
    }
    let before = counts(&mut pair);
    pair.plain.pipe.load(&begin).unwrap();
    pair.graphs.pipe.load(&begin).unwrap();
    step(&mut pair);
    step(&mut pair);
    assert_eq!(counts(&mut pair)[0].0, before[0].0);
    pair.finish("loaded");
}
