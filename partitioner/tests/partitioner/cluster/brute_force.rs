//! Random small clusters and models: every layout, schedule, number of micro-batches, cut and
//! choice of recompute is simulated, and the plan is compared with the best.

use gpipe_partitioner::{
    AllReduce, Bytes, Card, Cluster, ClusterOptions, Layout, Link, Machine, Micros, Neighbours,
    NodeKind, Partition, Problem, Profile, ScheduleKind, Shape, plan_cluster, simulate,
};
use proptest::prelude::*;

use super::{Layer, profile};

#[derive(Clone, Debug)]
struct Case {
    layers: Vec<Layer>,
    cluster: Cluster,
    batch: usize,
}

impl Case {
    fn options(&self) -> ClusterOptions {
        ClusterOptions::new(self.cluster.clone(), self.batch)
    }
}

fn link() -> impl Strategy<Value = Link> {
    let latency = 0_u32..6;
    (1_u64..30, latency).prop_map(|(bandwidth, latency)| {
        let latency = Micros::new(f64::from(latency)).unwrap();
        Link::new(Bytes(bandwidth * 1_000_000), latency).unwrap()
    })
}

fn card() -> impl Strategy<Value = Card> {
    let speed = prop::sample::select(vec![0.5, 1.0, 1.0, 2.0]);
    (speed, prop::option::of(60_u64..900)).prop_map(|(speed, memory)| Card {
        speed,
        memory: memory.map(Bytes),
        peak: None,
    })
}

fn cluster() -> impl Strategy<Value = Cluster> {
    let kind = (1_usize..3, 1_usize..3, card());
    let kinds = prop::collection::vec(kind, 1..3);
    (kinds, link(), link(), any::<bool>(), any::<bool>()).prop_filter_map(
        "few cards",
        |(kinds, inside, between, own, direct)| {
            let kind = |(nodes, cards, card)| NodeKind { nodes, cards, card };
            let cluster = Cluster::new(kinds.into_iter().map(kind).collect(), Some(between));
            let cluster = cluster.unwrap();
            let all_reduce = if direct {
                AllReduce::Direct
            } else {
                AllReduce::Levels
            };
            let cluster = cluster.with_link_inside(inside).with_nic_per_card(own);
            (cluster.cards() <= 4).then(|| cluster.with_all_reduce(all_reduce))
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let times = prop::array::uniform3(1_u32..12).prop_map(|times| times.map(f64::from));
    let bytes = (0_u64..40, 1_u64..60, 0_u64..60).prop_map(|(p, a, o)| [p, a, o]);
    let layers = prop::collection::vec((times, bytes), 1..5);
    (layers, cluster(), 1_usize..5).prop_map(|(layers, cluster, batch)| Case {
        layers,
        cluster,
        batch,
    })
}

/// Returns every selection of nodes of the kinds, in every order.
fn selections(cluster: &Cluster) -> Vec<Vec<(usize, usize)>> {
    let count = |kind: usize| cluster.kinds().get(kind).map_or(0, |own| own.nodes);
    let mut all = Vec::new();
    for first in 0..=count(0) {
        for second in 0..=count(1) {
            let used = [(0, first), (1, second)]
                .into_iter()
                .filter(|own| own.1 > 0);
            let used: Vec<_> = used.collect();
            let back: Vec<_> = used.iter().rev().copied().collect();
            all.extend([used, back]);
        }
    }
    all.retain(|own| !own.is_empty());
    all
}

fn machines(cluster: &Cluster) -> Vec<Machine> {
    let mut found = Vec::new();
    for nodes in selections(cluster) {
        for per_node in 1..=2 {
            for devices in 1..=4 {
                for replicas in [1, 2, 4] {
                    for neighbours in [Neighbours::Replicas, Neighbours::Stages] {
                        let layout = Layout {
                            nodes: nodes.clone(),
                            per_node,
                            devices,
                            replicas,
                            neighbours,
                        };
                        found.extend(cluster.machine(&layout));
                    }
                }
            }
        }
    }
    found
}

fn cuts(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    let first = 1..=(layers + 1).saturating_sub(stages);
    let with = |own: usize| {
        let rest = cuts(layers - own, stages - 1).into_iter();
        rest.map(move |rest| [vec![own], rest].concat())
    };
    first.flat_map(with).collect()
}

/// Returns the shortest step of all choices that fit.
fn best(case: &Case) -> Option<Micros> {
    let profile = profile(&case.layers);
    let mut best: Option<Micros> = None;
    for machine in machines(&case.cluster) {
        let (p, d) = (machine.devices().len(), machine.replicas());
        for micro in 1..=case.batch / d {
            for kind in ScheduleKind::ALL.into_iter().filter(|kind| kind.trains()) {
                for chunks in 1..=4 {
                    let shape = Shape::new(p, micro).with_chunks(chunks);
                    if shape.stages() <= case.layers.len() && kind != ScheduleKind::Auto {
                        let size = case.batch.div_ceil(micro * d);
                        let own = best_cut(&profile, &machine, (kind, shape, size), best);
                        best = [best, own].into_iter().flatten().min();
                    }
                }
            }
        }
    }
    best
}

fn best_cut(
    profile: &Profile,
    machine: &Machine,
    (kind, shape, size): (ScheduleKind, Shape, usize),
    known: Option<Micros>,
) -> Option<Micros> {
    let schedule = kind.generate(shape).ok()?;
    let state = 2.0 / machine.replicas() as f64;
    let problem = Problem::new(profile, size, machine, &schedule).with_optimizer_state(state);
    let (layers, stages) = (profile.layers().len(), shape.stages());
    let mut best = None;
    for balance in cuts(layers, stages) {
        let partition = Partition::from_balance(layers, &balance).unwrap();
        for redo in 0..1_u32 << stages {
            let redo: Vec<bool> = (0..stages).map(|stage| redo >> stage & 1 == 1).collect();
            let costs = problem.stage_costs(&partition, &redo, &vec![false; stages]);
            let simulation = simulate(&schedule, &costs);
            let step = simulation.makespan();
            if known.or(best).is_some_and(|known| known <= step) {
                continue;
            }
            let peaks = simulation.peak_bytes().into_iter().zip(machine.devices());
            let mut limits = peaks.map(|(peak, device)| (peak, device.memory));
            if limits.all(|(peak, limit)| limit.is_none_or(|limit| peak <= limit)) {
                best = Some(step);
            }
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_plan_is_the_best_there_is_and_the_bound_never_wrong(case in case()) {
        let profile = profile(&case.layers);
        let planned = plan_cluster(&profile, &case.options());
        let best = best(&case);
        let Some(best) = best else {
            prop_assert!(planned.is_err(), "{planned:?}");
            return Ok(());
        };
        let (plan, options) = planned.unwrap();
        let bound = plan.lower_bound.unwrap();
        prop_assert!(plan.step.get() <= best.get() * 1.01, "{best} {plan:?}");
        prop_assert!(bound <= best, "bound {bound} of {best} {plan:?}");
        prop_assert!(bound <= plan.step);
        // The plan agrees with its own simulation, within the memory of every card.
        let schedule = plan.generate().unwrap();
        let simulation = simulate(&schedule, &plan.costs(&profile, &options, &schedule));
        prop_assert_eq!(simulation.makespan(), plan.step);
        prop_assert_eq!(&simulation.peak_bytes(), &plan.peak_bytes);
        for (peak, device) in plan.peak_bytes.iter().zip(options.machine.devices()) {
            prop_assert!(device.memory.is_none_or(|limit| *peak <= limit));
        }
    }
}
