//! The cut with the shortest simulated step.

use gpipe_partitioner::{
    Bytes, LayerProfile, LayerTimes, Machine, Micros, Partition, Problem, Profile, ScheduleKind,
    Shape, simulate,
};
use proptest::prelude::*;

use super::plan_traffic::balances;

fn profile(times: &[u32]) -> Profile {
    let layer = |&time: &u32| {
        let time = Micros::new(f64::from(time)).unwrap();
        LayerProfile::new("layer", LayerTimes::new(time, time, time)).with_bytes(
            Bytes(1),
            Bytes(1),
            Bytes(1),
        )
    };
    Profile::new("cpu", 1, times.iter().map(layer).collect()).unwrap()
}

/// Returns the steps under the cut of the smallest bottleneck, under the cut found, and under the
/// best of all.
fn steps(profile: &Profile, kind: ScheduleKind, shape: Shape) -> [f64; 3] {
    let schedule = kind.generate(shape).unwrap();
    let machine = Machine::new(shape.devices).unwrap();
    let problem = Problem::new(profile, 1, &machine, &schedule);
    let never = vec![false; shape.stages()];
    let step = |cut: &Partition| {
        let costs = problem.stage_costs(cut, &never, &never);
        simulate(&schedule, &costs).makespan().get()
    };
    let layers = profile.layers().len();
    let all = balances(layers, shape.stages()).into_iter();
    [
        step(&problem.solve().unwrap().partition),
        step(&problem.solve_under(&schedule).unwrap().partition),
        all.map(|own| step(&Partition::from_balance(layers, &own).unwrap()))
            .fold(f64::INFINITY, f64::min),
    ]
}

/// Regression: `simulate --profile` took the cut with the smallest bottleneck: with several stages
/// per device, the totals of devices may then differ much, and a memory limit made the step
/// shorter.
#[test]
fn the_smallest_bottleneck_is_not_the_shortest_step() {
    let profile = profile(&[6, 1, 1, 1, 1, 1, 1]);
    let shape = Shape::new(2, 4).with_chunks(2);
    let [bottleneck, found, best] = steps(&profile, ScheduleKind::Zbv, shape);
    assert!(
        found < bottleneck && found == best,
        "{bottleneck} {found} {best}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn it_is_the_best_of_all_where_these_are_few(
        times in prop::collection::vec(1_u32..9, 4..9),
        kind in prop::sample::select(vec![
            ScheduleKind::OneFOneB, ScheduleKind::Zbv, ScheduleKind::Interleaved1F1B,
        ]),
        micro in 1_usize..4,
    ) {
        let chunks = if kind == ScheduleKind::OneFOneB { 1 } else { 2 };
        let shape = Shape::new(2, 2 * micro).with_chunks(chunks);
        let [_, found, best] = steps(&profile(&times), kind, shape);
        prop_assert!(found <= best * (1.0 + 1e-9), "{found} of {best}");
    }
}
