//! The simulation against a slow one that is written straight from the rules.

use gpipe_partitioner::{
    Action, ActionKind, Bytes, CheckedSchedule, Costs, DeviceId, EdgeTimes, MicroId, Micros,
    ScheduleKind, Shape, Simulation, StageId, StageMemory, StageTimes, simulate,
};
use proptest::prelude::*;
use std::collections::HashMap;

fn micros(t: u32) -> Micros {
    Micros::new(f64::from(t)).unwrap()
}

/// Ends by action, found by raising estimates until nothing changes any more.
fn ends(schedule: &CheckedSchedule, costs: &Costs) -> HashMap<Action, f64> {
    let plan = schedule.schedule();
    let gradient = |stage: usize, micro: MicroId| {
        [ActionKind::Backward, ActionKind::BackwardInput].map(|kind| Action {
            stage: StageId(stage),
            kind,
            micro,
        })
    };
    let mut end: HashMap<Action, f64> = HashMap::new();
    loop {
        // Each link carries its values in the order of their sender's list.
        let mut arrival: HashMap<Action, f64> = HashMap::new();
        let mut link: HashMap<(DeviceId, DeviceId), f64> = HashMap::new();
        for (device, list) in plan.iter() {
            for (at, &a) in list.iter().enumerate() {
                let s = a.stage.index();
                let (to, edge) = match a.kind {
                    ActionKind::Forward if s + 1 < plan.stages() => (s + 1, s),
                    ActionKind::Backward | ActionKind::BackwardInput if s > 0 => (s - 1, s - 1),
                    _ => continue,
                };
                let pair = plan.pairs(device).contains(&at);
                let leaves = end
                    .get(if pair { &list[at + 1] } else { &a })
                    .copied()
                    .unwrap_or(0.0);
                let target = schedule.device_of(StageId(to));
                let mut there = leaves;
                if target != device {
                    let times = costs.edge(StageId(edge));
                    let free = link.entry((device, target)).or_default();
                    if times.occupancy > Micros::ZERO {
                        *free = leaves.max(*free) + times.occupancy.get();
                        there = *free;
                    }
                    there += times.latency.get();
                }
                arrival.insert(a, there);
            }
        }
        let needs = |a: Action| -> f64 {
            let s = a.stage.index();
            match a.kind {
                ActionKind::Forward if s > 0 => {
                    arrival[&Action {
                        stage: StageId(s - 1),
                        ..a
                    }]
                }
                ActionKind::Backward | ActionKind::BackwardInput if s + 1 < plan.stages() => {
                    gradient(s + 1, a.micro)
                        .iter()
                        .find_map(|g| arrival.get(g))
                        .copied()
                        .unwrap()
                }
                _ => 0.0,
            }
        };
        let mut next: HashMap<Action, f64> = HashMap::new();
        for (device, list) in plan.iter() {
            let mut free = 0.0f64;
            for (at, &a) in list.iter().enumerate() {
                let mut ready = needs(a);
                if plan.pairs(device).contains(&at) {
                    ready = ready.max(needs(list[at + 1]));
                }
                free = free.max(ready) + costs.stage(a.stage).of(a.kind).get();
                next.insert(a, free);
            }
        }
        if next == end {
            return end;
        }
        end = next;
    }
}

/// The highest sum of what is held at any moment at which something starts.
fn peak(simulation: &Simulation, device: DeviceId) -> u64 {
    let (schedule, costs) = (simulation.schedule(), simulation.costs());
    let spans = simulation.timeline.spans_on(device);
    let fixed: u64 = schedule
        .stages_on(device)
        .iter()
        .map(|&s| costs.memory(s).fixed().get())
        .sum();
    let find = |stage, micro, kinds: &[ActionKind]| {
        spans.iter().position(|s| {
            s.action.stage == stage && s.action.micro == micro && kinds.contains(&s.action.kind)
        })
    };
    let held = |at: usize| -> u64 {
        let forwards = spans
            .iter()
            .enumerate()
            .filter(|(_, s)| s.action.kind == ActionKind::Forward);
        forwards
            .map(|(start, span)| {
                let (stage, micro) = (span.action.stage, span.action.micro);
                let memory = costs.memory(stage);
                let gradient = find(
                    stage,
                    micro,
                    &[ActionKind::Backward, ActionKind::BackwardInput],
                );
                let last = find(
                    stage,
                    micro,
                    &[ActionKind::Backward, ActionKind::BackwardWeight],
                );
                let Some((gradient, last)) = gradient.zip(last) else {
                    return if at == start {
                        memory.activation.get()
                    } else {
                        0
                    };
                };
                match at {
                    at if at < start || at > last => 0,
                    at if at < gradient => memory.activation.get(),
                    at if at == gradient => memory.activation.get() + memory.recomputed.get(),
                    _ => memory.after_input().get(),
                }
            })
            .sum()
    };
    fixed + (0..spans.len()).map(held).max().unwrap_or(0)
}

fn costs(stages: usize) -> impl Strategy<Value = Costs> {
    let stage = (
        0u32..20,
        0u32..20,
        0u32..20,
        0u32..15,
        0u32..15,
        0u64..50,
        0u64..50,
    );
    proptest::collection::vec(stage, stages).prop_map(|stages| {
        let times = stages.iter().map(|&(f, i, w, ..)| StageTimes {
            forward: micros(f),
            backward: micros(i + w),
            input: micros(i),
            weight: micros(w),
            recompute: micros(f),
        });
        let bare = Costs::new(times.collect());
        let stages = stages.iter().enumerate();
        stages.fold(
            bare,
            |costs, (s, &(_, _, _, occupancy, latency, activation, recomputed))| {
                let edge = EdgeTimes {
                    occupancy: micros(occupancy),
                    latency: micros(latency),
                };
                let memory = StageMemory {
                    parameters: Bytes(activation * 3),
                    activation: Bytes(activation),
                    recomputed: Bytes(recomputed),
                    kept_for_weight: (recomputed > 25).then_some(Bytes(activation / 2)),
                    ..StageMemory::default()
                };
                costs
                    .with_edge(StageId(s), edge)
                    .with_memory(StageId(s), memory)
            },
        )
    })
}

fn case() -> impl Strategy<Value = (CheckedSchedule, Costs)> {
    let shapes = (1usize..5, 1usize..3, 1usize..7, 0..ScheduleKind::ALL.len());
    shapes
        .prop_filter_map("the schedule has the shape", |(p, v, m, kind)| {
            ScheduleKind::ALL[kind]
                .generate(Shape::new(p, m).with_chunks(v))
                .ok()
        })
        .prop_flat_map(|schedule| {
            let costs = costs(schedule.schedule().stages());
            (Just(schedule), costs)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_simulation_is_what_the_rules_say((schedule, costs) in case()) {
        let simulation = simulate(&schedule, &costs);
        let expected = ends(&schedule, &costs);
        let origin = expected.iter().map(|(a, end)| end - costs.stage(a.stage).of(a.kind).get());
        let origin = origin.fold(f64::INFINITY, f64::min);
        for span in simulation.timeline.spans() {
            prop_assert_eq!(span.end.get(), expected[&span.action] - origin, "{}", span.action);
        }
    }

    #[test]
    fn memory_is_what_is_held((schedule, costs) in case()) {
        let simulation = simulate(&schedule, &costs);
        let peaks = simulation.peak_bytes();
        for (device, found) in peaks.iter().enumerate() {
            prop_assert_eq!(found.get(), peak(&simulation, DeviceId(device)));
        }
    }

    #[test]
    fn the_memory_curve_peaks_at_the_peak_and_ends_where_it_began((schedule, costs) in case()) {
        let simulation = simulate(&schedule, &costs);
        for (device, &peak) in simulation.peak_bytes().iter().enumerate() {
            let device = DeviceId(device);
            let curve = simulation.memory(device);
            prop_assert_eq!(curve.iter().map(|level| level.bytes).max(), Some(peak));
            prop_assert!(curve.is_sorted_by_key(|level| level.time));
            prop_assert!(curve.windows(2).all(|pair| pair[0].bytes != pair[1].bytes));
            let last = curve[curve.len() - 1];
            prop_assert_eq!((curve[0].time, curve[0].bytes), (Micros::ZERO, last.bytes));
            prop_assert!(last.time <= simulation.makespan());
            let timeline = &simulation.timeline;
            prop_assert_eq!(simulate::memory_over(&schedule, &costs, timeline, device), curve);
        }
    }

    #[test]
    fn the_critical_path_adds_up_to_the_makespan((schedule, costs) in case()) {
        let simulation = simulate(&schedule, &costs);
        let path = simulation.critical_path();
        let work: Micros = (0..costs.stages()).map(|stage| path.work(StageId(stage))).sum();
        prop_assert_eq!(work + path.transfers(), simulation.makespan());
    }

    #[test]
    fn what_helps_helps((schedule, costs) in case()) {
        let simulation = simulate(&schedule, &costs);
        let sensitivities = simulation.sensitivities();
        prop_assert!(sensitivities.windows(2).all(|two| two[0].saves >= two[1].saves));
        for sensitivity in sensitivities {
            prop_assert!(sensitivity.saves <= simulation.makespan() && (0.0..=1.0).contains(&sensitivity.shrink));
        }
    }
}
