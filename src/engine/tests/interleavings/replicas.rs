//! Replicas of a pipeline over two engines, under many interleavings: the exchanges of their
//! stages, and failures in them.

use super::adder::At;
use super::explore::{depth_first, sample, sample_each};
use super::parts::World;
use super::{recomputing, run, schedule, vee};
use gpipe_partitioner::{Action, CheckedSchedule, Schedule, ScheduleKind};

/// Two replicas with one device each, of one stage.
fn smallest() -> [Option<CheckedSchedule>; 2] {
    let one = || Some(schedule(ScheduleKind::GPipe, 1, 1));
    [one(), one()]
}

/// Two replicas of a pipeline of two devices, the second one with more micro-batches.
fn uneven(kind: ScheduleKind) -> [Option<CheckedSchedule>; 2] {
    [Some(schedule(kind, 2, 1)), Some(schedule(kind, 2, 2))]
}

#[test]
fn good_steps_of_replicas() {
    depth_first("the smallest replicas", || {
        let mut world = World::replicated(&smallest(), &[0, 1], false);
        world.good_step();
        world.check_done(1);
    });
    for split in [[0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 1, 0]] {
        sample(
            &format!("good steps of replicas over {split:?}"),
            move || {
                let mut world = World::replicated(&uneven(ScheduleKind::OneFOneB), &split, false);
                world.good_step();
                world.good_step();
                world.check_done(2);
            },
        );
    }
    sample("good steps of replicas, one without micro-batches", || {
        let replicas = [None, Some(vee(1))];
        let mut world = World::replicated(&replicas, &[0, 1, 1, 0], false);
        world.good_step();
        world.good_step();
        world.check_done(2);
    });
    sample("good steps of replicas that take turns", || {
        // Copies share a core, and meanwhile wait for values of another process.
        let replicas = [Some(vee(1)), Some(recomputing(ScheduleKind::Zbv, 2))];
        let mut world = World::replicated(&replicas, &[0, 0, 1, 1], true);
        world.good_step();
        world.good_step();
        world.check_done(2);
    });
}

/// The last backwards of the stages come in a different order in each replica.
#[test]
fn exchanges_that_begin_in_another_order_in_each_replica() {
    let row = |row: &str| row.split(' ').map(|own| own.parse().unwrap()).collect();
    let replica = |last: &str| {
        let rows = vec![row(&format!("0F0 1F0 1I0 0I0 {last}"))];
        Some(Schedule::new(last, 2, 1, rows).check().unwrap())
    };
    let replicas = [replica("0W0 1W0"), replica("1W0 0W0")];
    sample("exchanges in another order", move || {
        let mut world = World::replicated(&replicas, &[0, 1], false);
        world.good_step();
        world.bad_step(&[At::Exchange(1, 1, 1)]);
        world.good_step();
        world.check_done(2);
    });
}

#[test]
fn failures_of_replicas() {
    for round in 0..3 {
        let name = format!("the smallest failure in round {round}");
        depth_first(&name, move || {
            let mut world = World::replicated(&smallest(), &[0, 1], false);
            world.bad_step(&[At::Exchange(0, 1, round)]);
            world.good_step();
            world.check_done(1);
        });
    }
    let replicas = uneven(ScheduleKind::OneFOneB);
    let own = |replica: usize| replicas[replica].as_ref().unwrap().schedule();
    let actions = own(1).iter().flat_map(|(_, list)| list);
    let shifted = actions.map(|own| {
        let micro = gpipe_partitioner::MicroId(own.micro.index() + 1);
        At::Run(Action { micro, ..*own })
    });
    let rounds = (0..2).flat_map(|stage| {
        (0..2).flat_map(move |own| (0..3).map(move |round| At::Exchange(stage, own, round)))
    });
    let faults: Vec<At> = shifted.chain(rounds).collect();
    sample_each("a failure of replicas", &faults, move |fault| {
        let replicas = uneven(ScheduleKind::OneFOneB);
        let mut world = World::replicated(&replicas, &[0, 1, 0, 1], false);
        world.bad_step(&[fault]);
        world.good_step();
        world.check_done(1);
    });
    sample("several failures of replicas", || {
        let replicas = uneven(ScheduleKind::GPipe);
        let mut world = World::replicated(&replicas, &[0, 0, 1, 1], false);
        world.bad_step(&[run("1B2"), At::Exchange(1, 0, 0), At::Exchange(0, 0, 1)]);
        world.good_step();
        world.bad_step(&[At::Exchange(0, 1, 2), At::End(1)]);
        world.good_step();
        world.check_done(2);
    });
}
