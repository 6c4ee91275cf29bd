//! Among the plans with the shortest simulated step, `plan` takes one with the least traffic.

use gpipe_partitioner::{
    Bytes, LayerProfile, LayerTimes, Machine, Micros, Partition, Plan, PlanOptions, Problem,
    Profile, ScheduleKind, Shape, StageId, plan, simulate,
};
use proptest::prelude::*;

/// Few distinct times, so that many cuts have the same step; not all integral, so that sums in
/// another order differ in the last bits.
fn profile() -> impl Strategy<Value = Profile> {
    let layer = (0_u32..3, 1_u64..20).prop_map(|(time, output)| {
        let time = Micros::new(f64::from(time) * 0.1).unwrap();
        LayerProfile::new("layer", LayerTimes::new(time, time, time)).with_bytes(
            Bytes(1),
            Bytes(1),
            Bytes(output),
        )
    });
    let layers = prop::collection::vec(layer, 4..9);
    layers.prop_map(|layers| Profile::new("cpu", 1, layers).unwrap())
}

fn traffic(profile: &Profile, partition: &Partition) -> u64 {
    let ends = (1..partition.stages()).map(|stage| partition.range(StageId(stage)).start);
    ends.map(|end| profile.layers()[end - 1].footprint.output.get())
        .sum()
}

/// Returns every balance of `layers` layers over `stages` stages.
pub(crate) fn balances(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    let first = 1..=layers + 1 - stages;
    let with = |first: usize| {
        let rest = balances(layers - first, stages - 1).into_iter();
        rest.map(move |rest| [vec![first], rest].concat())
    };
    first.flat_map(with).collect()
}

fn planned(profile: &Profile, shape: Shape, kind: ScheduleKind) -> Plan {
    let mut options = PlanOptions::new(Machine::new(shape.devices).unwrap());
    options.schedule = Some(kind);
    options.chunks = Some(1);
    options.micro_batches = Some(shape.micro_batches);
    plan(profile, &options).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_fewest_bytes_travel_in_the_shortest_step(
        profile in profile(),
        kind in prop::sample::select(vec![ScheduleKind::GPipe, ScheduleKind::OneFOneB]),
        devices in 2_usize..5,
        micro in 1_usize..5,
    ) {
        let shape = Shape::new(devices, micro);
        let plan = planned(&profile, shape, kind);
        let schedule = kind.generate(shape).unwrap();
        let machine = Machine::new(devices).unwrap();
        let problem = Problem::new(&profile, 1, &machine, &schedule);
        let never = vec![false; devices];
        let step = |cut: &Partition| {
            simulate(&schedule, &problem.stage_costs(cut, &never, &never)).makespan().get()
        };
        let layers = profile.layers().len();
        let cuts = balances(layers, devices).into_iter();
        let cuts: Vec<_> = cuts.map(|own| Partition::from_balance(layers, &own).unwrap()).collect();
        let best = cuts.iter().map(step).fold(f64::INFINITY, f64::min);
        let near = |cut: &&Partition| step(cut) <= best * (1.0 + 1e-12);
        let least = cuts.iter().filter(near).map(|cut| traffic(&profile, cut)).min();
        prop_assert!(plan.step.get() <= best * (1.0 + 1e-9), "{} of {best}", plan.step);
        prop_assert!(traffic(&profile, &plan.partition) <= least.unwrap());
    }
}
