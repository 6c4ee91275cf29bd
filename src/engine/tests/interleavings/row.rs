//! Steps in a row without a barrier, under many interleavings.

use super::adder::{At, Rig};
use super::explore::{depth_first, sample, sample_each};
use super::{run, schedule, vee};
use gpipe_partitioner::{Action, ScheduleKind};

#[test]
fn good_steps_in_a_row() {
    depth_first("the smallest steps in a row", || {
        let mut rig = Rig::new(&schedule(ScheduleKind::GPipe, 2, 1)).in_a_row(2);
        rig.good_step();
        rig.check_done(1);
    });
    sample("steps in a row", || {
        let mut rig = Rig::new(&schedule(ScheduleKind::ZbH2, 3, 3)).in_a_row(3);
        rig.good_step();
        rig.good_step();
        rig.check_done(2);
    });
    sample("steps in a row of stages in a V", || {
        let mut rig = Rig::new(&vee(2)).in_a_row(3);
        rig.good_step();
        rig.check_done(1);
    });
    sample("steps in a row of devices that take turns", || {
        let mut rig = Rig::taking_turns(&schedule(ScheduleKind::ZbH2, 3, 2), 1).in_a_row(3);
        rig.good_step();
        rig.good_step();
        rig.check_done(2);
    });
}

/// A failure in any step, while others are at the step before or after.
#[test]
fn a_failure_in_each_action_of_steps_in_a_row() {
    let step = schedule(ScheduleKind::ZbH2, 2, 2);
    let all = step.schedule().iter().flat_map(|(_, list)| list);
    let actions: Vec<Action> = all.copied().collect();
    sample_each("a failure in a row", &actions, move |action| {
        // In step 0, 1 or 2, depending on the interleaving.
        let mut rig = Rig::new(&step).in_a_row(3);
        rig.good_step();
        rig.step(vec![At::Run(action)], false).unwrap_err();
        rig.good_step();
        rig.check_done(2);
    });
    let closes: Vec<At> = (0..2)
        .flat_map(|stage| (0..3).map(move |step| At::Close(stage, step)))
        .collect();
    sample_each("a failure in a close", &closes, |at| {
        let mut rig = Rig::new(&schedule(ScheduleKind::ZbH2, 2, 2)).in_a_row(3);
        rig.step(vec![at], true).unwrap_err();
        rig.good_step();
        rig.check_done(1);
    });
    sample("several failures in a row", || {
        let mut rig = Rig::new(&vee(2)).in_a_row(2);
        rig.step(vec![At::Close(3, 0), At::Close(0, 1)], false)
            .unwrap_err();
        rig.step(vec![At::Close(1, 1), run("2W1")], true)
            .unwrap_err();
        rig.good_step();
        rig.check_done(1);
    });
}

#[test]
fn a_caller_without_patience_gives_up_steps_in_a_row() {
    sample("no patience in a row", || {
        let rig = Rig::new(&schedule(ScheduleKind::ZbH2, 2, 2)).in_a_row(2);
        let mut rig = rig.impatient(true);
        let good = (0..2)
            .filter(|_| rig.step(Vec::new(), false).is_ok())
            .count();
        let mut rig = rig.impatient(false);
        rig.good_step();
        rig.check_done(good + 1);
    });
}
