//! `auto` is never worse than a built-in schedule that fits, and never better than
//! its lower bound.

use gpipe_partitioner::{
    Bytes, CheckedSchedule, Costs, EdgeTimes, Effort, Machine, Micros, PlanOptions, Profile,
    ScheduleError, ScheduleKind, Shape, StageId, StageMemory, StageTimes, auto, auto_within, plan,
    simulate,
};
use proptest::prelude::*;

/// Random times, links and activations of every stage.
fn costs(stages: usize) -> impl Strategy<Value = Costs> {
    let stage = (1u32..50, 1u32..50, 1u32..50, 0u32..20, 0u32..10, 1u64..100);
    proptest::collection::vec(stage, stages).prop_map(|stages| {
        let micros = |t: u32| Micros::new(f64::from(t)).unwrap();
        let times = |&(f, i, w, ..): &(u32, u32, u32, u32, u32, u64)| StageTimes {
            forward: micros(f),
            backward: micros(i + w - w / 4),
            input: micros(i),
            weight: micros(w),
            recompute: micros(f),
        };
        let bare = Costs::new(stages.iter().map(times).collect());
        stages
            .iter()
            .enumerate()
            .fold(bare, |costs, (s, &(_, _, _, occupancy, latency, bytes))| {
                let edge = EdgeTimes {
                    occupancy: micros(occupancy),
                    latency: micros(latency),
                };
                let memory = StageMemory {
                    activation: Bytes(bytes),
                    ..StageMemory::default()
                };
                costs
                    .with_edge(StageId(s), edge)
                    .with_memory(StageId(s), memory)
            })
    })
}

fn problem() -> impl Strategy<Value = (Shape, Costs, Option<u64>)> {
    (1usize..6, 1usize..3, 1usize..14).prop_flat_map(|(p, v, m)| {
        let shape = Shape::new(p, m).with_chunks(v);
        (Just(shape), costs(p * v), proptest::option::of(50u64..1500))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn auto_lies_between_its_bound_and_every_built_in_that_fits((shape, costs, cap) in problem()) {
        let caps = vec![cap.map(Bytes); shape.devices];
        let fits = |peaks: Vec<Bytes>| peaks.iter().all(|&peak| cap.is_none_or(|cap| peak <= Bytes(cap)));
        let best = ScheduleKind::ALL
            .into_iter()
            .filter_map(|kind| kind.generate(shape).ok())
            .filter(CheckedSchedule::is_training)
            .map(|schedule| simulate(&schedule, &costs))
            .filter(|simulation| fits(simulation.peak_bytes()))
            .map(|simulation| simulation.makespan())
            .min();
        let effort = Effort { states: 8, moves: 300 };
        match auto_within(shape, &costs, &caps, None, effort) {
            Ok(found) => {
                let makespan = found.simulation.makespan();
                prop_assert!(best.is_none_or(|best| makespan <= best));
                prop_assert!(found.lower_bound <= makespan, "{} {makespan}", found.lower_bound);
                prop_assert!(fits(found.simulation.peak_bytes()));
                prop_assert!(found.schedule.accumulates_in_order());
            }
            Err(error) => {
                prop_assert!(best.is_none(), "{error}");
                let fits = matches!(error, ScheduleError::NothingFits { .. });
                prop_assert!(fits, "{}", error);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Regression: with 1000 GiB a plan recomputed a micro-batch, was slower than without a limit,
    /// and required more memory.
    #[test]
    fn a_limit_that_nothing_reaches_changes_nothing((shape, costs, _) in problem()) {
        let recomputes = |costs: Costs, stage: usize| {
            let memory = costs.memory(StageId(stage));
            let recomputable = Bytes(memory.activation.get() / 2);
            costs.with_memory(StageId(stage), StageMemory { recomputable, ..memory })
        };
        let costs = (0..shape.stages()).fold(costs, recomputes);
        let effort = Effort { states: 8, moves: 300 };
        let found = |cap: Option<u64>| {
            let caps = vec![cap.map(Bytes); shape.devices];
            auto_within(shape, &costs, &caps, None, effort).unwrap()
        };
        let (free, limited) = (found(None), found(Some(1 << 40)));
        prop_assert_eq!(free.simulation.makespan(), limited.simulation.makespan());
        prop_assert_eq!(free.schedule.schedule(), limited.schedule.schedule());
    }
}

#[test]
fn a_slow_stage_gets_a_schedule_of_its_own() {
    let unit = Micros::new(10.0).unwrap();
    let costs = Costs::uniform(4, unit, unit, unit).scaled(StageId(1), 1.3);
    let found = auto(Shape::new(4, 5), &costs, &[], None).unwrap();
    // Of the computed ones, those are listed that were not given up.
    let (computed, built_in): (Vec<_>, Vec<_>) =
        (found.candidates.iter()).partition(|own| own.name.starts_with("auto"));
    assert!(!computed.is_empty());
    let makespan = found.simulation.makespan();
    assert!(built_in.iter().all(|own| makespan < own.makespan));
    assert!(found.lower_bound.get() >= 5.0 * 39.0);
    assert!(found.simulation.makespan().get() <= 1.1 * found.lower_bound.get());
}

/// Guards the work: a plan for many devices computes schedules many times.
#[test]
fn no_schedule_is_made_after_one_proved_to_be_the_best() {
    let unit = Micros::new(10.0).unwrap();
    let costs = Costs::uniform(64, unit, unit, unit);
    let found = auto(Shape::new(64, 256), &costs, &[], None).unwrap();
    assert_eq!(found.simulation.makespan(), found.lower_bound);
    let made = found.candidates.len();
    assert!(made <= ScheduleKind::ALL.len(), "{made}");
}

/// Regression: the greedy scheduler stopped if all forwards fitted and no backward did, and its
/// lists counted as a schedule: of inference, and faster than all training schedules.
#[test]
fn a_plan_trains_where_forwards_alone_fit() {
    let text = include_str!("../../../examples/data/profiles/gpt.json");
    let profile = Profile::from_json(text, "gpt.json").unwrap();
    let machine = Machine::new(4).unwrap();
    let machine = machine.with_memory(&["190MiB".parse().unwrap()]).unwrap();
    let mut options = PlanOptions::new(machine);
    (options.micro_batches, options.batch) = (Some(2), Some(32));
    if let Ok(plan) = plan(&profile, &options) {
        // Each stage has both micro-batches to run, in its forwards and its backwards.
        assert!(plan.step.get() >= 2.0 * plan.bottleneck.get(), "{plan:?}");
    }
}

#[test]
fn what_fits_nowhere_is_said_with_the_least_excess() {
    let unit = Micros::new(1.0).unwrap();
    let memory = StageMemory {
        parameters: Bytes(1000),
        activation: Bytes(10),
        ..StageMemory::default()
    };
    let costs = Costs::uniform(2, unit, unit, unit).with_memory(StageId(1), memory);
    let error = auto(Shape::new(2, 4), &costs, &[None, Some(Bytes(900))], None).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("exceeds the cap of device 1 by 110 B"),
        "{error}"
    );
}

/// Memory that just fits one micro-batch in flight is enough.
#[test]
fn the_least_memory_is_found() {
    let unit = Micros::new(1.0).unwrap();
    for (p, v) in [(1, 1), (3, 1), (3, 2), (2, 4)] {
        let memory = StageMemory {
            activation: Bytes(10),
            ..StageMemory::default()
        };
        let costs = (0..p * v).fold(Costs::uniform(p * v, unit, unit, unit), |costs, stage| {
            costs.with_memory(StageId(stage), memory)
        });
        let least = 10 * v as u64;
        let shape = Shape::new(p, 6).with_chunks(v);
        assert!(auto(shape, &costs, &vec![Some(Bytes(least)); p], None).is_ok());
        assert!(auto(shape, &costs, &vec![Some(Bytes(least - 1)); p], None).is_err());
    }
}
