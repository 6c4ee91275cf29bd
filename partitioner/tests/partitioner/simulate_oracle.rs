//! The simulation against a slow one written directly from the rules.

use gpipe_partitioner::{
    Action, ActionKind, Bytes, CheckedSchedule, Costs, DeviceId, EdgeTimes, MicroId, Micros,
    OffloadTimes, ScheduleKind, Shape, Simulation, StageId, StageMemory, StageTimes, simulate,
};
use proptest::prelude::*;
use std::collections::HashMap;

fn micros(t: u32) -> Micros {
    Micros::new(f64::from(t)).unwrap()
}

/// Returns starts and ends by action, found by raising estimates to a fixed point.
fn ends(schedule: &CheckedSchedule, costs: &Costs) -> HashMap<Action, (f64, f64)> {
    let told = submitted(schedule, costs);
    raised(schedule, costs, &|device, list, needs| {
        let (mut free, mut links) = (0.0f64, HostLinks::default());
        let moves = schedule.schedule().offload_moves(device);
        let mut spans = Vec::new();
        for (at, &a) in list.iter().enumerate() {
            let (begin, last) = told[&a];
            let came = free.max(begin);
            let start = came.max(needs(at));
            let back = links.take_back();
            if let Some((stage, _)) = moves[at].prefetched {
                links.bring_back(costs.offload(stage), came);
            }
            let works = start.max(back) + costs.stage(a.stage).of(a.kind).get();
            let end = works.max(last);
            spans.push((start, end));
            free = end.max(links.gone);
            links.gone = 0.0;
            if let Some((stage, _)) = moves.get(at + 1).and_then(|next| next.released) {
                links.leave(costs.offload(stage), (start, end));
            }
        }
        spans
    })
}

/// Returns when the host's threads begin and end to submit each action: they behave like devices
/// without transfer times.
fn submitted(schedule: &CheckedSchedule, costs: &Costs) -> HashMap<Action, (f64, f64)> {
    let stages = schedule.schedule().stages();
    let times = (0..stages).map(|stage| costs.host(StageId(stage)));
    let hosts = Costs::new(times.collect());
    raised(schedule, &hosts, &|_, list, needs| {
        let mut free = 0.0f64;
        let mut spans = Vec::new();
        for (at, a) in list.iter().enumerate() {
            let start = free.max(needs(at));
            free = start + hosts.stage(a.stage).of(a.kind).get();
            spans.push((start, free));
        }
        spans
    })
}

/// A device's links to the host's memory, piece by piece.
#[derive(Default)]
struct HostLinks {
    out: f64,
    back: f64,
    /// Time at which the last offload is on the host, and the last prefetch on the device.
    arrived: f64,
    there: f64,
    /// Time at which the next action's end may free the previous one's activations.
    gone: f64,
}

impl HostLinks {
    fn take_back(&mut self) -> f64 {
        std::mem::take(&mut self.there)
    }

    fn bring_back(&mut self, times: OffloadTimes, from: f64) {
        let way = times.to_device;
        self.back = self.back.max(from).max(self.arrived) + way.occupancy.get();
        self.there = self.back + way.latency.get();
    }

    fn leave(&mut self, times: OffloadTimes, (start, end): (f64, f64)) {
        let (way, pieces) = (times.to_host, times.pieces);
        if way.occupancy.get() + way.latency.get() == 0.0 {
            return;
        }
        for piece in 1..=pieces {
            let made = start + (end - start) * f64::from(piece) / f64::from(pieces);
            self.out = self.out.max(made) + way.occupancy.get() / f64::from(pieces);
        }
        self.gone = self.out + way.latency.get();
        self.arrived = self.gone;
    }
}

type Needs<'a> = &'a dyn Fn(usize) -> f64;
type Device<'a> = &'a dyn Fn(DeviceId, &[Action], Needs<'_>) -> Vec<(f64, f64)>;

/// Returns starts and ends of devices that run their lists in order: `run` gives those of one
/// device, whose actions need their inputs at certain times.
fn raised(
    schedule: &CheckedSchedule,
    costs: &Costs,
    run: Device<'_>,
) -> HashMap<Action, (f64, f64)> {
    let plan = schedule.schedule();
    let gradient = |stage: usize, micro: MicroId| {
        [ActionKind::Backward, ActionKind::BackwardInput].map(|kind| Action {
            stage: StageId(stage),
            kind,
            micro,
        })
    };
    let mut spans: HashMap<Action, (f64, f64)> = HashMap::new();
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
                let leaves = spans
                    .get(if pair { &list[at + 1] } else { &a })
                    .map_or(0.0, |&(_, end)| end);
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
        let mut next = HashMap::new();
        for (device, list) in plan.iter() {
            let both = |at: usize| {
                let partner = plan.pairs(device).contains(&at);
                let partner = partner.then(|| needs(list[at + 1]));
                needs(list[at]).max(partner.unwrap_or(0.0))
            };
            next.extend(list.iter().copied().zip(run(device, list, &both)));
        }
        if next == spans {
            return spans;
        }
        spans = next;
    }
}

/// Returns the highest sum of bytes held when an action starts.
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

/// Adds hosts that submit, and offloaded activations.
fn beside(costs: Costs) -> impl Strategy<Value = Costs> {
    let stage = (
        [0u32..20, 0u32..30, 0u32..20, 0u32..20],
        [0u32..30, 0u32..10, 0u32..30, 0u32..10],
        prop::sample::select(vec![1u32, 2, 4]),
        any::<[bool; 2]>(),
    );
    let stages = proptest::collection::vec(stage, costs.stages());
    (stages, any::<[bool; 2]>()).prop_map(move |(stages, all)| {
        let mut costs = costs.clone();
        for (stage, (host, links, pieces, own)) in stages.into_iter().enumerate() {
            let stage = StageId(stage);
            let [forward, backward, input, weight] = host.map(micros);
            if all[0] && own[0] {
                let times = StageTimes {
                    forward,
                    backward,
                    input,
                    weight,
                    recompute: forward,
                };
                costs = costs.with_host(stage, times);
            }
            let edge = |occupancy: u32, latency: u32| EdgeTimes {
                occupancy: micros(occupancy),
                latency: micros(latency),
            };
            if all[1] && own[1] {
                let memory = costs.memory(stage);
                let offloaded = memory.activation;
                let times = OffloadTimes {
                    to_host: edge(links[0], links[1]),
                    to_device: edge(links[2], links[3]),
                    pieces,
                };
                let memory = StageMemory {
                    offloaded,
                    ..memory
                };
                costs = costs.with_offload(stage, times).with_memory(stage, memory);
            }
        }
        costs
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

fn case_beside() -> impl Strategy<Value = (CheckedSchedule, Costs)> {
    (case(), any::<u64>(), any::<bool>()).prop_flat_map(|((schedule, costs), bits, singly)| {
        let schedule = if singly {
            offloading(&schedule, bits)
        } else {
            schedule
        };
        (Just(schedule), beside(costs))
    })
}

/// Returns the schedule with its own list of offloads, given as bits.
fn offloading(schedule: &CheckedSchedule, bits: u64) -> CheckedSchedule {
    if !schedule.is_training() {
        return schedule.clone();
    }
    let (stages, m) = (
        schedule.schedule().stages(),
        schedule.schedule().micro_batches(),
    );
    let cells = (0..stages * m).filter(|cell| bits >> (cell % 64) & 1 == 1);
    let own = cells.map(|cell| (StageId(cell / m), MicroId(cell % m)));
    let schedule = schedule.schedule().clone().with_offloads(own);
    schedule.check().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_simulation_is_what_the_rules_say((schedule, costs) in case()) {
        let simulation = simulate(&schedule, &costs);
        let expected = ends(&schedule, &costs);
        let origin = expected.values().map(|&(start, _)| start).fold(f64::INFINITY, f64::min);
        for span in simulation.timeline.spans() {
            let (start, end) = expected[&span.action];
            let found = (span.start.get(), span.end.get());
            prop_assert_eq!(found, (start - origin, end - origin), "{}", span.action);
        }
    }

    #[test]
    fn so_it_is_with_hosts_and_offload((schedule, costs) in case_beside()) {
        let simulation = simulate(&schedule, &costs);
        let expected = ends(&schedule, &costs);
        let origin = expected.values().map(|&(start, _)| start).fold(f64::INFINITY, f64::min);
        for span in simulation.timeline.spans() {
            let (start, end) = expected[&span.action];
            let found = (span.start.get(), span.end.get());
            prop_assert_eq!(found, (start - origin, end - origin), "{}", span.action);
        }
        let path = simulation.critical_path();
        let work: Micros = (0..costs.stages()).map(|stage| path.work(StageId(stage))).sum();
        prop_assert!((work + path.transfers()).get() <= simulation.makespan().get());
        let alone = simulate(&schedule, &costs.clone().without_host().without_offload());
        prop_assert!(alone.makespan() <= simulation.makespan());
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

/// Listed offloads of all micro-batches equal stages that offload.
#[test]
fn single_offloads_of_all_micro_batches_are_those_of_the_stages() {
    let way = |time| EdgeTimes {
        occupancy: micros(time),
        latency: micros(1),
    };
    let times = OffloadTimes {
        to_host: way(14),
        to_device: way(9),
        pieces: 2,
    };
    for kind in ScheduleKind::ALL.into_iter().filter(|kind| kind.trains()) {
        let shape = Shape::new(3, 6).with_chunks(kind.default_chunks());
        let plain = kind.generate(shape).unwrap();
        let costs = Costs::uniform(shape.stages(), micros(10), micros(11), micros(7));
        let (mut whole, mut single) = (costs.clone(), costs);
        for stage in (0..shape.stages()).map(StageId) {
            let memory = StageMemory {
                activation: Bytes(100),
                ..StageMemory::default()
            };
            let offloaded = StageMemory {
                offloaded: Bytes(80),
                ..memory
            };
            whole = whole
                .with_offload(stage, times)
                .with_memory(stage, offloaded);
            let offloadable = StageMemory {
                offloadable: Bytes(80),
                ..memory
            };
            single = (single.with_single_offload(stage, times)).with_memory(stage, offloadable);
        }
        let all = offloading(&plain, u64::MAX);
        let (one, other) = (simulate(&plain, &whole), simulate(&all, &single));
        assert_eq!(one.timeline, other.timeline, "{kind}");
        assert_eq!(one.peak_bytes(), other.peak_bytes(), "{kind}");
        assert_eq!(one.stage_peak_bytes(), other.stage_peak_bytes(), "{kind}");
        // A schedule without offloads does not depend on the host link.
        assert!(
            simulate(&plain, &single).makespan() <= other.makespan(),
            "{kind}"
        );
    }
}
