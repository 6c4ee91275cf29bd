//! Random machines: shared cards against a slow simulation, and invariants.

use std::collections::HashMap;

use gpipe_partitioner::{
    Action, ActionKind, Bytes, CheckedSchedule, Costs, DeviceId, EdgeTimes, LayerProfile,
    LayerTimes, Machine, Micros, Nodes, Partition, Problem, Profile, ScheduleKind, Shape, StageId,
    simulate,
};
use proptest::prelude::*;

use super::{link, micros};

/// A schedule, layers' times and outputs, and the network.
#[derive(Clone, Debug)]
struct Case {
    schedule: CheckedSchedule,
    profile: Profile,
    replicas: usize,
    nodes: Vec<usize>,
    inside: (u64, u32),
    between: (u64, u32),
}

impl Case {
    fn machine(&self, inside: (u64, u32), between: (u64, u32), nic_per_device: bool) -> Machine {
        let nodes = Nodes::new(self.nodes.clone(), link(between.0, between.1)).unwrap();
        let nodes = nodes.with_nic_per_device(nic_per_device);
        self.one_node(inside).with_nodes(nodes).unwrap()
    }

    fn one_node(&self, inside: (u64, u32)) -> Machine {
        let machine = Machine::new(self.schedule.schedule().devices()).unwrap();
        let machine = machine.with_link(link(inside.0, inside.1));
        machine.with_replicas(self.replicas).unwrap()
    }

    /// Returns costs with one layer per stage.
    fn costs(&self, machine: &Machine) -> Costs {
        let stages = self.schedule.schedule().stages();
        let cut = Partition::uniform(stages, stages).unwrap();
        let problem = Problem::new(&self.profile, 1, machine, &self.schedule);
        problem.stage_costs(&cut, &vec![false; stages], &vec![false; stages])
    }

    fn makespan(&self, machine: &Machine) -> f64 {
        simulate(&self.schedule, &self.costs(machine))
            .makespan()
            .get()
    }
}

fn case(most_replicas: usize) -> impl Strategy<Value = Case> {
    let shapes = (
        1_usize..5,
        1_usize..3,
        1_usize..6,
        0..ScheduleKind::ALL.len(),
    );
    let schedule = shapes.prop_filter_map("the schedule has the shape", |(p, v, m, kind)| {
        let shape = Shape::new(p, m).with_chunks(v);
        ScheduleKind::ALL[kind].generate(shape).ok()
    });
    let network = || (1_u64..9, 0_u32..9);
    let layer = (prop::array::uniform3(1_u32..20), 0_u64..60, 0_u64..60);
    (
        schedule,
        prop::collection::vec(layer, 8),
        1..=most_replicas,
        prop::collection::vec(any::<bool>(), 12),
        network(),
        network(),
    )
        .prop_map(|(schedule, layers, replicas, splits, inside, between)| {
            let layers = layers.into_iter().map(|(times, output, parameters)| {
                let [f, i, w] = times.map(|time| micros(f64::from(time)));
                let layer = LayerProfile::new("layer", LayerTimes::new(f, i, w));
                layer.with_bytes(Bytes(parameters), Bytes(1), Bytes(output))
            });
            let plan = schedule.schedule();
            let mut nodes = vec![1];
            for split in &splits[1..plan.devices() * replicas] {
                match nodes.last_mut() {
                    Some(last) if !split => *last += 1,
                    _ => nodes.push(1),
                }
            }
            let stages = plan.stages();
            Case {
                profile: Profile::new("cpu", 1, layers.take(stages).collect()).unwrap(),
                schedule,
                replicas,
                nodes,
                inside,
                between,
            }
        })
}

/// Simulates microsecond by microsecond: starts and ends by action. For integral times of at least
/// 1 and one replica.
fn tick_by_tick(case: &Case, costs: &Costs) -> HashMap<Action, (f64, f64)> {
    let (schedule, plan) = (&case.schedule, case.schedule.schedule());
    let node_of = |device: usize| {
        let ends = case.nodes.iter().scan(0, |sum, own| {
            *sum += own;
            Some(*sum)
        });
        ends.take_while(|&end| end <= device).count()
    };
    let (mut out, mut into) = (vec![0.0_f64; 12], vec![0.0_f64; 12]);
    let mut links: HashMap<(usize, usize), f64> = HashMap::new();
    // Arrival times: (forward?, receiving stage, micro-batch).
    let mut there: HashMap<(bool, usize, usize), f64> = HashMap::new();
    let mut spans: HashMap<Action, (f64, f64)> = HashMap::new();
    let mut heads = vec![(0, None::<f64>); plan.devices()];
    let all: usize = plan.iter().map(|(_, list)| list.len()).sum();
    let mut now = 0.0;
    while spans.len() < all || heads.iter().any(|(_, end)| end.is_some()) {
        for (device, (head, working)) in heads.iter_mut().enumerate() {
            if *working != Some(now) {
                continue;
            }
            let action = plan.actions(DeviceId(device))[*head];
            (*head, *working) = (*head + 1, None);
            let stage = action.stage.index();
            let (forward, to, edge) = match action.kind {
                ActionKind::Forward if stage + 1 < plan.stages() => (true, stage + 1, stage),
                ActionKind::Backward | ActionKind::BackwardInput if stage > 0 => {
                    (false, stage - 1, stage - 1)
                }
                _ => continue,
            };
            let target = schedule.device_of(StageId(to)).index();
            let times = costs.edge(StageId(edge));
            let (from, toward) = (node_of(device), node_of(target));
            let takes = times.occupancy.get();
            let mut arrival = now;
            if target != device && takes > 0.0 {
                let start = if from == toward {
                    links
                        .get(&(device, target))
                        .copied()
                        .unwrap_or(0.0)
                        .max(now)
                } else {
                    out[from].max(into[toward]).max(now)
                };
                arrival = start + takes;
                if from == toward {
                    links.insert((device, target), arrival);
                } else {
                    (out[from], into[toward]) = (arrival, arrival);
                }
            }
            if target != device {
                arrival += times.latency.get();
            }
            there.insert((forward, to, action.micro.index()), arrival);
        }
        for (device, (head, working)) in heads.iter_mut().enumerate() {
            let Some(&action) = plan.actions(DeviceId(device)).get(*head) else {
                continue;
            };
            let (stage, micro) = (action.stage.index(), action.micro.index());
            let comes = match action.kind {
                ActionKind::Forward if stage > 0 => Some(true),
                ActionKind::Backward | ActionKind::BackwardInput if stage + 1 < plan.stages() => {
                    Some(false)
                }
                _ => None,
            };
            let has = |forward| {
                there
                    .get(&(forward, stage, micro))
                    .is_some_and(|at| *at <= now)
            };
            if working.is_some() || !comes.is_none_or(has) {
                continue;
            }
            let end = now + costs.stage(action.stage).of(action.kind).get();
            spans.insert(action, (now, end));
            *working = Some(end);
        }
        now += 1.0;
    }
    spans
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Values that devices of a node send to other nodes share a card, one at a time each way.
    #[test]
    fn shared_cards_are_what_a_slow_simulation_says(case in case(1)) {
        let plan = case.schedule.schedule();
        prop_assume!(plan.iter().all(|(device, _)| plan.pairs(device).is_empty()));
        // One microsecond per byte.
        let costs = case.costs(&case.machine((1, case.inside.1), (1, case.between.1), false));
        let simulation = simulate(&case.schedule, &costs);
        let expected = tick_by_tick(&case, &costs);
        for span in simulation.timeline.spans() {
            let found = (span.start.get(), span.end.get());
            prop_assert_eq!(found, expected[&span.action], "{}", span.action);
        }
    }

    /// Sharing a card is never faster.
    #[test]
    fn a_card_of_its_own_is_never_worse(case in case(3)) {
        let makespan = |own| case.makespan(&case.machine(case.inside, case.between, own));
        prop_assert!(makespan(true) <= makespan(false) + 1e-9);
    }

    /// A faster link, or one with less latency, makes no step longer if devices do not share one.
    #[test]
    fn faster_links_are_never_worse(case in case(3), inside in (0_u64..5, 0_u32..5), between in (0_u64..5, 0_u32..5)) {
        let better = |(speed, latency): (u64, u32), (more, less): (u64, u32)| {
            (speed + more, latency.saturating_sub(less))
        };
        let before = case.makespan(&case.machine(case.inside, case.between, true));
        let faster = case.machine(better(case.inside, inside), better(case.between, between), true);
        prop_assert!(case.makespan(&faster) <= before + 1e-9);
    }

    /// Links between nodes that are as fast as those within and not shared make one node.
    #[test]
    fn nodes_with_links_as_within_are_one(case in case(1)) {
        let apart = case.machine(case.inside, case.inside, true);
        let one = case.one_node(case.inside);
        prop_assert_eq!(case.costs(&apart), case.costs(&one));
        let none = Machine::new(case.schedule.schedule().devices()).unwrap();
        let none = none.with_link(link(case.inside.0, case.inside.1));
        prop_assert_eq!(case.costs(&one), case.costs(&none));
    }

    /// The exchange follows the actions, whose times do not change.
    #[test]
    fn an_exchange_delays_no_action(case in case(3), own in any::<bool>()) {
        let costs = case.costs(&case.machine(case.inside, case.between, own));
        let with = simulate(&case.schedule, &costs).timeline;
        let without = simulate(&case.schedule, &costs.clone().without_exchange()).timeline;
        prop_assert_eq!(with.spans(), without.spans());
        prop_assert_eq!(without.exposed(), Micros::ZERO);
        prop_assert_eq!(with.makespan(), without.makespan() + with.exposed());
        for exchange in with.exchanges() {
            let own = with.spans().iter().filter(|span| span.action.stage == exchange.stage);
            let last = own.map(|span| span.end).max().unwrap();
            prop_assert!(exchange.start >= last);
            let times = costs.exchange(exchange.stage);
            let takes = (times.occupancy + times.latency).get();
            prop_assert!((exchange.end - exchange.start).get() >= takes - 1e-9);
        }
        let trains = case.schedule.is_training();
        let has = |stage| costs.exchange(StageId(stage)) != EdgeTimes::default();
        let stages = (0..costs.stages()).filter(|&stage| has(stage)).count();
        prop_assert_eq!(with.exchanges().len(), if trains { stages } else { 0 });
    }
}
