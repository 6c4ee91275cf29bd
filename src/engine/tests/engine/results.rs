//! The engine computes the same as a plain loop over stages and micro-batches.

use crate::support::{
    Affine, Grads, Settings, affine_engine, chunked, entries, oracle, recomputing, schedule,
    watched,
};
use gpipe_engine::{Edge, End, Engine, Program, Topology};
use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, DeviceId, MicroId, Schedule, ScheduleKind, StageId,
};
use std::sync::Arc;

fn actions(row: &str) -> Vec<Action> {
    row.split_whitespace()
        .map(|action| action.parse().unwrap())
        .collect()
}

fn custom(stages: usize, micros: usize, rows: &[&str]) -> CheckedSchedule {
    let rows = rows.iter().map(|row| actions(row)).collect();
    Schedule::new("custom", stages, micros, rows)
        .check()
        .unwrap()
}

fn grads(engine: &mut Engine<Affine>) -> Vec<Grads> {
    engine.on_each(|_, stage| Ok(stage.grads)).unwrap()
}

/// Checks that two steps with different inputs agree with the oracle, and that the log has the
/// schedule's actions in the schedule's order.
fn check(schedule: CheckedSchedule, topology: Topology) {
    let topology = Arc::new(topology);
    let mut engine = affine_engine(&schedule, &topology);
    let micros = schedule.schedule().micro_batches();
    let training = schedule.is_training();
    let in_order = schedule.accumulates_in_order();
    let program = Arc::new(Program::new(schedule, &topology).unwrap());
    let mut sum = vec![Grads::default(); topology.stages()];
    for seed in [5, 1000] {
        let outcome = engine
            .step(
                &program,
                Arc::new(Settings::default()),
                entries(&program, seed),
            )
            .unwrap();
        let expected = oracle(&topology, micros, training, seed);
        assert_eq!(outcome.exits, expected.exits);
        assert_eq!(outcome.gradients, expected.gradients);
        for (sum, new) in sum.iter_mut().zip(&expected.grads) {
            sum.weight = sum.weight.wrapping_add(new.weight);
            sum.bias = sum.bias.wrapping_add(new.bias);
        }
        let plain = program.schedule().schedule();
        for (device, log) in outcome.events.iter().enumerate() {
            let ran: Vec<_> = log.iter().map(|event| event.action).collect();
            assert_eq!(ran, plain.actions(DeviceId(device)));
        }
        assert_eq!(
            outcome.timeline.spans().len(),
            outcome.events.iter().map(Vec::len).sum::<usize>()
        );
        for (sum, got) in sum.iter().zip(grads(&mut engine)) {
            assert_eq!((sum.weight, sum.bias), (got.weight, got.bias));
        }
    }
    let plain = program.schedule().schedule();
    let recomputed = engine.on_each(|_, stage| Ok(stage.recomputed)).unwrap();
    for (stage, times) in recomputed.into_iter().enumerate() {
        let all = plain.iter().flat_map(|(_, list)| list);
        let own = all.filter(|a| (a.kind, a.stage) == (ActionKind::Recompute, StageId(stage)));
        assert_eq!(times, 2 * own.count());
    }
    if in_order && training {
        let once = (0..micros).map(|micro| micro as i64 + 1);
        let order = once.clone().chain(once).fold(0i64, |hash, micro| {
            hash.wrapping_mul(31).wrapping_add(micro)
        });
        assert!(grads(&mut engine).iter().all(|grads| grads.order == order));
    }
}

fn edge(from: usize, to: usize) -> Edge {
    Edge {
        from: End::Stage(StageId(from)),
        to: End::Stage(StageId(to)),
        gradient: true,
    }
}

/// A chain with portals, doubled edges, edges without gradients, a second input in
/// the middle and an output before the end.
fn tangled(stages: usize) -> Topology {
    let mut edges = Topology::chain(stages).edges().to_vec();
    for from in 0..stages {
        for to in from + 2..stages {
            edges.push(Edge {
                gradient: (from + to) % 3 != 0,
                ..edge(from, to)
            });
        }
    }
    if stages > 1 {
        edges.insert(0, edge(0, 1));
        let middle = End::Stage(StageId(stages / 2));
        edges.push(Edge {
            from: End::Caller,
            to: middle,
            gradient: false,
        });
        edges.push(Edge {
            from: End::Stage(StageId(0)),
            to: End::Caller,
            gradient: false,
        });
    }
    Topology::new(stages, edges).unwrap()
}

/// Checks every built-in schedule for p = 1 to 4, with and without recomputes.
fn check_every_schedule(micros: &[usize], topology: fn(usize) -> Topology) {
    for kind in ScheduleKind::ALL {
        for p in 1..=4 {
            for &m in micros {
                let schedule = chunked(kind, p, m);
                let stages = schedule.schedule().stages();
                if schedule.is_training() {
                    check(recomputing(&schedule), topology(stages));
                }
                check(schedule, topology(stages));
            }
        }
    }
}

#[test]
fn every_built_in_schedule_over_a_chain() {
    watched(|| check_every_schedule(&[1, 2, 3, 4, 7, 8, 16], Topology::chain));
}

#[test]
fn every_built_in_schedule_with_portals() {
    watched(|| check_every_schedule(&[1, 2, 5], tangled));
}

#[test]
fn several_stages_on_a_device_hand_over_without_leaving_it() {
    watched(|| {
        let rows = [
            "0F0 0F1 3F0 3F1 3B0 3B1 0B0 0B1",
            "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1",
        ];
        check(custom(4, 2, &rows), tangled(4));
        check(custom(3, 1, &["0F0 1F0 2F0 2B0 1B0 0B0"]), tangled(3));
    });
}

#[test]
fn a_split_backward_and_a_recompute_in_an_unusual_order() {
    watched(|| {
        let rows = ["0F0 0F1 0R1 0I0 0I1 0W1 0W0", "1F0 1F1 1I0 1R1 1I1 1W1 1W0"];
        check(custom(2, 2, &rows), tangled(2));
        let rows = ["0F1 0F0 0B0 0B1", "1F1 1F0 1B0 1B1"];
        check(custom(2, 2, &rows), Topology::chain(2));
    });
}

#[test]
fn programs_of_different_sizes_take_turns_on_one_engine() {
    watched(|| {
        let topology = Arc::new(Topology::chain(3));
        let mut engine = affine_engine(&schedule(ScheduleKind::GPipe, 3, 1), &topology);
        for (kind, m) in [
            (ScheduleKind::OneFOneB, 8),
            (ScheduleKind::ForwardOnly, 3),
            (ScheduleKind::GPipe, 1),
            (ScheduleKind::OneFOneB, 5),
        ] {
            let program = Arc::new(Program::new(schedule(kind, 3, m), &topology).unwrap());
            let outcome = engine
                .step(&program, Arc::default(), entries(&program, 9))
                .unwrap();
            let expected = oracle(&topology, m, kind != ScheduleKind::ForwardOnly, 9);
            assert_eq!(outcome.exits, expected.exits);
            assert_eq!(outcome.gradients, expected.gradients);
        }
    });
}

#[test]
fn the_log_respects_dependencies_and_counts_bytes_in_flight() {
    watched(|| {
        let topology = Arc::new(Topology::chain(3));
        let schedule = schedule(ScheduleKind::OneFOneB, 3, 8);
        let peaks: Vec<u64> = (0..3)
            .map(|s| 8 * schedule.peak_in_flight(StageId(s)) as u64)
            .collect();
        let mut engine = affine_engine(&schedule, &topology);
        let program = Arc::new(Program::new(schedule, &topology).unwrap());
        let outcome = engine
            .step(&program, Arc::default(), entries(&program, 1))
            .unwrap();
        let time = |stage, kind, micro| {
            let wanted = Action {
                stage: StageId(stage),
                kind,
                micro: MicroId(micro),
            };
            *outcome
                .events
                .iter()
                .flatten()
                .find(|event| event.action == wanted)
                .unwrap()
        };
        for micro in 0..8 {
            for stage in 1..3 {
                let (first, then) = (
                    time(stage - 1, ActionKind::Forward, micro),
                    time(stage, ActionKind::Forward, micro),
                );
                assert!(first.end <= then.start);
                let (first, then) = (
                    time(stage, ActionKind::Backward, micro),
                    time(stage - 1, ActionKind::Backward, micro),
                );
                assert!(first.end <= then.start);
            }
        }
        for (log, peak) in outcome.events.iter().zip(peaks) {
            assert_eq!(
                log.iter().map(|event| event.bytes_in_flight.get()).max(),
                Some(peak)
            );
            assert_eq!(log.last().unwrap().bytes_in_flight.get(), 0);
        }
    });
}
