//! The engine's protocol under many thousands of interleavings of its threads.
//!
//! A model checker runs the engine's own source with its own locks and threads, one thread at a
//! time, and decides at every lock, wait and atomic access which goes on. It finds deadlocks and
//! lost wake-ups by itself (all threads asleep); the tests also assert the results, and that no
//! value outlives its step.
//!
//! A depth-first search goes through the first interleavings of the smallest cases
//! in order; random and priority-based (PCT) walks sample those of the larger ones.
#![allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_wrap
)]

mod adder;
mod engine;
mod explore;
mod parts;
mod replicas;

use adder::{At, Rig, builder};
use anyhow::bail;
use engine::Engine;
use explore::{depth_first, sample, sample_each};
use gpipe_partitioner::{Action, CheckedSchedule, Schedule, ScheduleKind, Shape, StageId};
use std::sync::Arc;

/// A built-in schedule with its usual number of stages per device.
fn schedule(kind: ScheduleKind, devices: usize, micros: usize) -> CheckedSchedule {
    let shape = Shape::new(devices, micros).with_chunks(kind.default_chunks());
    kind.generate(shape).unwrap()
}

/// Two stages on each of two devices, in a V, where the last two meet on one
/// device; backwards in halves, and a recompute before each.
fn vee(micros: usize) -> CheckedSchedule {
    recomputing(ScheduleKind::Zbv, micros)
}

fn recomputing(kind: ScheduleKind, micros: usize) -> CheckedSchedule {
    let plain = schedule(kind, 2, micros).schedule().clone();
    plain.with_recomputes(|_, _| true).check().unwrap()
}

fn run(action: &str) -> At {
    At::Run(action.parse().unwrap())
}

#[test]
fn two_good_steps() {
    sample("two good steps", || {
        let mut rig = Rig::new(&schedule(ScheduleKind::OneFOneB, 3, 3));
        rig.good_step();
        rig.good_step();
        rig.check_done(2);
    });
}

#[test]
fn good_steps_of_several_stages_a_device_with_a_split_backward_and_recomputes() {
    sample("stages in a V", || {
        let mut rig = Rig::new(&vee(2));
        rig.good_step();
        rig.good_step();
        rig.check_done(2);
    });
    sample("stages in a loop", || {
        let mut rig = Rig::new(&recomputing(ScheduleKind::InterleavedZb, 2));
        rig.good_step();
        rig.good_step();
        rig.check_done(2);
    });
}

#[test]
fn the_smallest_failures_depth_first() {
    depth_first("smallest failure", || {
        let mut rig = Rig::new(&schedule(ScheduleKind::GPipe, 2, 1));
        rig.step(vec![run("1F0")], false).unwrap_err();
        rig.good_step();
    });
    let row = |row: &str| row.split(' ').map(|a| a.parse().unwrap()).collect();
    let rows = ["0F0 2F0 2R0 2I0 2W0 0R0 0I0 0W0", "1F0 1R0 1I0 1W0"];
    let smallest = Schedule::new("smallest", 3, 1, rows.map(row).to_vec())
        .check()
        .unwrap();
    for fault in ["1R0", "2W0", "1I0"] {
        let schedule = smallest.clone();
        depth_first(&format!("failure in {fault}"), move || {
            let mut rig = Rig::new(&schedule);
            rig.step(vec![run(fault)], true).unwrap_err();
            rig.good_step();
            rig.check_done(1);
        });
    }
}

#[test]
fn a_failing_step_between_good_ones() {
    sample("a failing step", || {
        let mut rig = Rig::new(&schedule(ScheduleKind::OneFOneB, 3, 3));
        rig.good_step();
        let error = rig.step(vec![run("1B1")], true).unwrap_err();
        assert_eq!(error.stage_error().unwrap().stage, StageId(1));
        rig.good_step();
        rig.check_done(2);
    });
}

#[test]
fn a_failure_in_each_action_of_several_stages_a_device() {
    for schedule in [vee(2), recomputing(ScheduleKind::DualPipeV, 2)] {
        let name = format!("a failure in each action of {}", schedule.schedule().name());
        let all = schedule.schedule().iter().flat_map(|(_, list)| list);
        let actions: Vec<Action> = all.copied().collect();
        sample_each(&name, &actions, move |action| {
            let mut rig = Rig::new(&schedule);
            let error = rig.step(vec![At::Run(action)], false).unwrap_err();
            let failure = error.stage_error().unwrap();
            assert_eq!(
                (failure.stage, failure.micro),
                (action.stage, Some(action.micro))
            );
            rig.good_step();
            rig.check_done(1);
        });
    }
}

#[test]
fn several_stages_fail_at_once() {
    sample("several failures", || {
        let mut rig = Rig::new(&schedule(ScheduleKind::GPipe, 3, 2));
        let faults = vec![At::Begin(2), run("0F1"), run("1F0")];
        rig.step(faults, false).unwrap_err();
        rig.step(vec![At::End(2), run("1B1")], true).unwrap_err();
        rig.step(vec![At::End(0)], false).unwrap_err();
        rig.good_step();
        rig.check_done(1);
    });
    sample("several failures of several stages a device", || {
        let mut rig = Rig::new(&vee(2));
        // A weight pass that nobody waits for, while its peers go on; a recompute ahead of its
        // gradient; both halves on both devices at once.
        rig.step(vec![run("3W0"), run("1R1")], false).unwrap_err();
        rig.step(vec![run("2I0"), run("3I1"), run("0W0")], true)
            .unwrap_err();
        rig.step(vec![run("0R0"), run("1W1")], false).unwrap_err();
        rig.step(vec![At::Begin(1), At::End(3)], true).unwrap_err();
        rig.good_step();
        rig.check_done(1);
    });
}

#[test]
fn the_end_of_an_engine_after_a_failure_or_before_anything() {
    sample("the end", || {
        drop(Rig::new(&schedule(ScheduleKind::GPipe, 3, 1)));
        let mut rig = Rig::new(&schedule(ScheduleKind::GPipe, 3, 2));
        rig.step(vec![run("2F0")], false).unwrap_err();
        drop(rig);
        let mut rig = Rig::new(&vee(1));
        rig.step(vec![run("1R0")], true).unwrap_err();
        drop(rig);
        let alive = Arc::default();
        let stages = |device| vec![StageId(device), StageId(5 - device)];
        let mut builders: Vec<_> = (0..3)
            .map(|device| builder(stages(device), 6, &alive))
            .collect();
        builders[1] = Box::new(|| bail!("no room"));
        Engine::new(builders).unwrap_err();
    });
}

#[test]
fn devices_that_take_turns() {
    sample("turns on one core", || {
        let mut rig = Rig::taking_turns(&schedule(ScheduleKind::OneFOneB, 3, 3), 1);
        rig.good_step();
        rig.good_step();
        rig.check_done(2);
    });
    sample("turns on two cores", || {
        let mut rig = Rig::taking_turns(&schedule(ScheduleKind::ZbH1, 4, 3), 2);
        rig.good_step();
        rig.good_step();
        rig.check_done(2);
    });
    depth_first("the smallest turns", || {
        let mut rig = Rig::taking_turns(&schedule(ScheduleKind::GPipe, 2, 1), 1);
        rig.step(vec![run("1F0")], false).unwrap_err();
        rig.good_step();
    });
}

/// Steps that may be abandoned at any moment at which a stage is at work, and then a whole one.
#[test]
fn a_caller_without_patience() {
    let steps = |rig: Rig, faults: fn() -> Vec<At>| {
        let mut rig = rig.impatient(true);
        let good = (0..3).filter(|_| rig.step(faults(), false).is_ok()).count();
        let mut rig = rig.impatient(false);
        rig.good_step();
        rig.check_done(good + 1);
    };
    let one = schedule(ScheduleKind::OneFOneB, 3, 2);
    sample("no patience", move || steps(Rig::new(&one), Vec::new));
    let two = vee(1);
    sample("no patience with failures", move || {
        steps(Rig::new(&two), || vec![run("2I0"), At::Begin(1)]);
    });
    let three = schedule(ScheduleKind::OneFOneB, 3, 2);
    sample("no patience with turns", move || {
        steps(Rig::taking_turns(&three, 1), Vec::new);
    });
}

#[test]
fn the_end_of_an_engine_that_was_given_up() {
    let gpipe = schedule(ScheduleKind::GPipe, 3, 2);
    sample("the end after a stall", move || {
        let mut rig = Rig::new(&gpipe).impatient(true);
        // Success or not: the engine is dropped while a stage may still be at work.
        let _ = rig.step(Vec::new(), false);
        drop(rig);
    });
}

#[test]
fn failures_of_devices_that_take_turns() {
    let schedule = schedule(ScheduleKind::OneFOneB, 3, 2);
    let all = schedule.schedule().iter().flat_map(|(_, list)| list);
    let actions: Vec<Action> = all.copied().collect();
    sample_each("a failure in a turn", &actions, move |action| {
        let mut rig = Rig::taking_turns(&schedule, 1);
        rig.step(vec![At::Run(action)], true).unwrap_err();
        rig.good_step();
        rig.step(vec![At::Begin(1), At::End(2)], false).unwrap_err();
        rig.good_step();
        rig.check_done(2);
    });
}
