//! Simulations with known results.

use super::*;
use crate::builtin::ScheduleKind;
use crate::cores::Cores;
use crate::cost::StageMemory;
use crate::ids::StageId;
use crate::schedule::Shape;

fn micros(value: f64) -> Micros {
    Micros::new(value).unwrap()
}

fn run(kind: ScheduleKind, p: usize, m: usize, costs: &Costs) -> Timeline {
    simulate(&kind.generate(Shape::new(p, m)).unwrap(), costs).timeline
}

#[test]
fn gpipe_and_1f1b_have_the_bubble_of_their_papers() {
    for kind in [ScheduleKind::GPipe, ScheduleKind::OneFOneB] {
        for (p, m) in [(1, 1), (1, 5), (4, 1), (4, 3), (4, 9)] {
            let costs = Costs::uniform(p, micros(2.0), micros(3.0), micros(4.0));
            let makespan = run(kind, p, m, &costs).makespan();
            assert_eq!(makespan, micros(9.0 * (m + p - 1) as f64), "{kind} {p} {m}");
        }
    }
}

#[test]
fn latency_delays_every_hop() {
    let costs = Costs::uniform(3, micros(1.0), micros(1.0), micros(1.0))
        .with_transfer(Micros::ZERO, micros(10.0));
    // Two hops there, two hops back.
    assert_eq!(
        run(ScheduleKind::GPipe, 3, 1, &costs).makespan(),
        micros(9.0 + 40.0)
    );
}

#[test]
fn a_busy_link_queues() {
    let costs = Costs::uniform(2, micros(1.0), micros(1.0), micros(1.0))
        .with_transfer(micros(5.0), micros(2.0));
    let timeline = run(ScheduleKind::ForwardOnly, 2, 3, &costs);
    let starts: Vec<f64> = timeline
        .spans_on(DeviceId(1))
        .iter()
        .map(|s| s.start.get())
        .collect();
    // Ready at 1, 2, 3; the link takes 5 each, one after the other.
    assert_eq!(starts, [8.0, 13.0, 18.0]);
}

#[test]
fn memory_rises_with_forwards_and_falls_with_backwards() {
    let memory = StageMemory {
        parameters: Bytes(100),
        gradients: Bytes(100),
        optimizer: Bytes(200),
        activation: Bytes(10),
        ..StageMemory::default()
    };
    let costs = (0..2).fold(
        Costs::uniform(2, micros(1.0), micros(1.0), micros(1.0)),
        |costs, stage| costs.with_memory(StageId(stage), memory),
    );
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(2, 3)).unwrap();
    let simulation = simulate(&schedule, &costs);
    assert_eq!(simulation.peak_bytes(), [Bytes(420), Bytes(410)]);
    assert_eq!(simulation.stage_peak_bytes(), [Bytes(420), Bytes(410)]);
    let levels: Vec<(f64, u64)> = simulation
        .memory(DeviceId(1))
        .iter()
        .map(|level| (level.time.get(), level.bytes.get()))
        .collect();
    // Gradients from the first backward on.
    let expected = [
        (0.0, 300),
        (1.0, 310),
        (4.0, 400),
        (4.0, 410),
        (7.0, 400),
        (7.0, 410),
        (10.0, 400),
    ];
    assert_eq!(levels, expected);
}

#[test]
fn what_an_action_works_with_and_what_it_sends_count() {
    let memory = StageMemory {
        activation: Bytes(10),
        sent: Bytes(5),
        working: Bytes(100),
        ..StageMemory::default()
    };
    let costs = (0..2).fold(
        Costs::uniform(2, micros(1.0), micros(1.0), micros(1.0)),
        |costs, stage| costs.with_memory(StageId(stage), memory),
    );
    let schedule = ScheduleKind::GPipe.generate(Shape::new(2, 2)).unwrap();
    let simulation = simulate(&schedule, &costs);
    let levels = |device| -> Vec<(f64, u64)> {
        let levels = simulation.memory(DeviceId(device)).into_iter();
        levels
            .map(|level| (level.time.get(), level.bytes.get()))
            .collect()
    };
    // Two forwards, then two backwards; nothing waits for the first stage's input gradients.
    let first = [
        (0.0, 110),
        (1.0, 10),
        (1.0, 120),
        (2.0, 20),
        (5.0, 120),
        (7.0, 10),
        (7.0, 110),
        (9.0, 0),
    ];
    assert_eq!(levels(0)[1..], first);
    // Each gradient waits for the first stage to begin its backward.
    let last = [
        (1.0, 110),
        (2.0, 10),
        (2.0, 120),
        (3.0, 20),
        (3.0, 120),
        (5.0, 15),
        (5.0, 115),
        (5.0, 110),
        (7.0, 5),
        (7.0, 0),
    ];
    assert_eq!(levels(1)[1..], last);
    assert_eq!(simulation.peak_bytes(), [Bytes(120); 2]);
}

#[test]
fn a_recompute_takes_its_buffer_until_the_backward_ends() {
    let memory = StageMemory {
        activation: Bytes(1),
        recomputed: Bytes(50),
        ..StageMemory::default()
    };
    let costs =
        Costs::uniform(1, micros(1.0), micros(1.0), micros(1.0)).with_memory(StageId(0), memory);
    let peak = |list: &str| {
        let actions = list
            .split_whitespace()
            .map(|action| action.parse().unwrap())
            .collect();
        let schedule = crate::Schedule::new("test", 1, 2, vec![actions])
            .check()
            .unwrap();
        let simulation = simulate(&schedule, &costs);
        assert_eq!(simulation.peak_bytes(), simulation.stage_peak_bytes());
        simulation.peak_bytes()[0]
    };
    // Within the backward, as a separate action, and until the weight pass.
    assert_eq!(peak("0F0 0F1 0B0 0B1"), Bytes(52));
    assert_eq!(peak("0F0 0F1 0R0 0R1 0B0 0B1"), Bytes(102));
    assert_eq!(peak("0F0 0F1 0I0 0I1 0W0 0W1"), Bytes(102));
    assert_eq!(peak("0F0 0F1 0I0 0W0 0I1 0W1"), Bytes(52));
}

#[test]
fn the_critical_path_explains_the_makespan() {
    for kind in ScheduleKind::ALL {
        let shape = Shape::new(3, 7);
        let Ok(schedule) = kind
            .generate(shape)
            .or_else(|_| kind.generate(shape.with_chunks(2)))
        else {
            panic!("{kind}");
        };
        let stages = schedule.schedule().stages();
        let costs = (0..stages).fold(
            Costs::uniform(stages, micros(3.0), micros(4.0), micros(2.0))
                .with_transfer(micros(1.0), micros(2.0)),
            |costs, stage| costs.scaled(StageId(stage), 1.0 + stage as f64),
        );
        let simulation = simulate(&schedule, &costs);
        let path = simulation.critical_path();
        let work: Micros = (0..stages).map(|stage| path.work(StageId(stage))).sum();
        assert_eq!(work + path.transfers(), simulation.makespan(), "{kind}");
        assert_eq!(path.steps[0].span.start, Micros::ZERO);
        let ordered = path
            .steps
            .windows(2)
            .all(|two| two[0].span.end <= two[1].span.start);
        // The forward of a pair sends when its partner ends.
        assert!(ordered || kind == ScheduleKind::DualPipeV);
    }
}

#[test]
fn the_slowest_stage_helps_most_until_it_is_as_fast_as_the_others() {
    let costs = Costs::uniform(4, micros(10.0), micros(10.0), micros(10.0)).scaled(StageId(2), 2.0);
    let schedule = ScheduleKind::OneFOneB.generate(Shape::new(4, 32)).unwrap();
    let best = simulate(&schedule, &costs).sensitivities()[0];
    assert_eq!(best.target, SensitivityTarget::Stage(StageId(2)));
    assert!((best.shrink - 0.5).abs() < 0.03, "{best:?}");
    assert!(
        (best.amount.get() - 30.0).abs() < 2.0 && best.saves > micros(900.0),
        "{best:?}"
    );
}

#[test]
fn transfers_help_where_they_hold_the_step_up() {
    let costs = Costs::uniform(2, micros(1.0), micros(1.0), micros(1.0))
        .with_transfer(micros(50.0), micros(0.0));
    let schedule = ScheduleKind::GPipe.generate(Shape::new(2, 8)).unwrap();
    let best = simulate(&schedule, &costs).sensitivities()[0];
    assert_eq!(best.target, SensitivityTarget::Transfers);
}

#[test]
fn stages_of_one_device_have_their_own_peaks() {
    let memory = |bytes| StageMemory {
        activation: Bytes(bytes),
        ..StageMemory::default()
    };
    let costs = Costs::uniform(4, micros(1.0), micros(1.0), micros(1.0));
    let costs = (0..4).fold(costs, |costs, stage| {
        costs.with_memory(StageId(stage), memory(10u64.pow(stage as u32)))
    });
    let shape = Shape::new(2, 4).with_chunks(2);
    let schedule = ScheduleKind::Zbv.generate(shape).unwrap();
    let simulation = simulate(&schedule, &costs);
    let expected: Vec<_> = (0..4)
        .map(|stage| {
            let held = schedule.peak_in_flight(StageId(stage)) as u64;
            Bytes(held * 10u64.pow(stage as u32))
        })
        .collect();
    assert_eq!(simulation.stage_peak_bytes(), expected);
}

fn cores(cores: usize) -> Cores {
    Cores::new(cores, 1).unwrap()
}

#[test]
fn one_core_does_one_thing_after_the_other() {
    let costs = Costs::uniform(3, micros(2.0), micros(3.0), micros(4.0)).with_cores(cores(1));
    for kind in [
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::ZbH1,
    ] {
        // Some device can always run, so the core is never idle.
        let makespan = run(kind, 3, 4, &costs).makespan().get();
        assert!(
            (makespan - 3.0 * 4.0 * 9.0).abs() < 1e-6,
            "{kind}: {makespan}"
        );
    }
}

#[test]
fn devices_without_a_core_wait_and_the_most_urgent_goes_first() {
    let costs = Costs::uniform(2, micros(6.0), micros(1.0), micros(1.0)).with_cores(cores(1));
    let timeline = run(ScheduleKind::ForwardOnly, 2, 2, &costs);
    let starts = |device| -> Vec<f64> {
        let spans = timeline.spans_on(DeviceId(device)).iter();
        spans.map(|span| span.start.get()).collect()
    };
    // After 0F0 both devices could go on, with two actions left: the first one does.
    assert_eq!((starts(0), starts(1)), (vec![0.0, 6.0], vec![12.0, 18.0]));
}

mod sharing {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = ScheduleKind> {
        let training = |kind: &ScheduleKind| *kind != ScheduleKind::Auto;
        prop::sample::select(
            ScheduleKind::ALL
                .into_iter()
                .filter(training)
                .collect::<Vec<_>>(),
        )
    }

    proptest! {
        #[test]
        fn cores_bound_the_makespan_from_both_sides(
            kind in kinds(),
            p in 1_usize..5,
            m in 1_usize..7,
            available in 1_usize..5,
            times in prop::collection::vec(0.0_f64..9.0, 3 * 8),
            occupancy in 0.0_f64..4.0,
            latency in 0.0_f64..4.0,
        ) {
            let chunks = kind.default_chunks();
            let Ok(schedule) = kind.generate(Shape::new(p, m).with_chunks(chunks)) else {
                return Ok(());
            };
            let costs = (0..p * chunks).fold(
                Costs::uniform(p * chunks, micros(1.0), micros(1.0), micros(1.0))
                    .with_transfer(micros(occupancy), micros(latency)),
                |costs, stage| costs.scaled(StageId(stage), times[stage % times.len()]),
            );
            let alone = simulate(&schedule, &costs);
            let shared = simulate(&schedule, &costs.clone().with_cores(cores(available)));
            let work: f64 = alone.timeline.spans().iter().map(|span| span.duration().get()).sum();
            let (alone, end) = (alone.makespan().get(), shared.makespan().get());
            let close = 1e-9 * (1.0 + end);
            prop_assert_eq!(shared.timeline.spans().len(), schedule.schedule().iter().map(|(_, list)| list.len()).sum::<usize>());
            prop_assert!(end >= work / available as f64 - close);
            // The longest chain, and all cores running while it waits (Graham 1969).
            prop_assert!(end >= alone - close, "{end} {alone}");
            let waits = costs.clone().with_transfer(Micros::ZERO, Micros::ZERO);
            let unlinked = simulate(&schedule, &waits.with_cores(cores(available))).makespan().get();
            let most = work / available as f64 + alone * (1.0 - 1.0 / available as f64);
            prop_assert!(unlinked <= most + close, "{unlinked} {alone} {most}");
            let spans = shared.timeline.spans();
            for span in spans {
                let begun = spans.iter().filter(|other| other.start <= span.start);
                let beside = begun.filter(|other| other.end > span.start).count();
                prop_assert!(beside <= available, "{span:?}");
            }
            if available >= p {
                prop_assert_eq!(end, alone);
            }
        }

        /// With a core for each device, simulating from event to event agrees with walking the
        /// lists, including overlapped pairs.
        #[test]
        fn both_ways_to_simulate_agree(
            kind in kinds(), p in 1_usize..5, m in 1_usize..9,
            times in prop::collection::vec(0.1_f64..9.0, 8),
            occupancy in 0.0_f64..4.0, latency in 0.0_f64..4.0,
        ) {
            let shape = Shape::new(p, m).with_chunks(kind.default_chunks());
            let Ok(schedule) = kind.generate(shape) else {
                return Ok(());
            };
            let costs = (0..shape.stages()).fold(
                Costs::uniform(shape.stages(), micros(1.0), micros(2.0), micros(1.5))
                    .with_transfer(micros(occupancy), micros(latency)),
                |costs, stage| costs.scaled(StageId(stage), times[stage % times.len()]),
            );
            let duration = |action: Action| costs.stage(action.stage).of(action.kind);
            let walked = replay(&schedule, &costs, duration);
            let events = shared_cores::timeline(&schedule, &costs, cores(p), duration);
            for (one, other) in walked.spans().iter().zip(events.spans()) {
                prop_assert_eq!(one.action, other.action);
                prop_assert!((one.start.get() - other.start.get()).abs() < 1e-6, "{one:?} {other:?}");
                prop_assert!((one.end.get() - other.end.get()).abs() < 1e-6, "{one:?} {other:?}");
            }
        }
    }
}
