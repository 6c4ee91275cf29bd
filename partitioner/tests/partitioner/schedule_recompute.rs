//! Recomputes in any schedule: the right ones, in their places, and no other change.

use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, Costs, DeviceId, MicroId, Micros, Schedule, ScheduleKind,
    Shape, StageId, simulate,
};
use proptest::prelude::*;

/// Micro-batches and stages that are recomputed.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Never,
    ExceptLast,
    Always,
    /// Stages and micro-batches of a random pattern.
    Some(u64),
}

impl Mode {
    fn wants(self, stage: StageId, micro: MicroId, m: usize) -> bool {
        match self {
            Self::Never => false,
            Self::ExceptLast => micro.index() + 1 < m,
            Self::Always => true,
            Self::Some(pattern) => pattern >> ((7 * stage.index() + micro.index()) % 64) & 1 == 1,
        }
    }

    fn apply(self, schedule: &Schedule) -> Schedule {
        let m = schedule.micro_batches();
        let schedule = schedule.clone();
        schedule.with_recomputes(|stage, micro| self.wants(stage, micro, m))
    }
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![
        Just(Mode::Never),
        Just(Mode::ExceptLast),
        Just(Mode::Always),
        any::<u64>().prop_map(Mode::Some),
    ]
}

/// The actions of `device` without recomputes.
fn without(schedule: &Schedule, device: DeviceId) -> Vec<Action> {
    let list = schedule.actions(device).iter().copied();
    list.filter(|action| action.kind != ActionKind::Recompute)
        .collect()
}

/// The pairs of `device`, as actions.
fn pairs(schedule: &Schedule, device: DeviceId) -> Vec<[Action; 2]> {
    let list = schedule.actions(device);
    let pair = |&at: &usize| [list[at], list[at + 1]];
    schedule.pairs(device).iter().map(pair).collect()
}

/// Whether an R is followed by its backward, or by the pair that ends with its backward.
fn stands_right(schedule: &Schedule, device: DeviceId, at: usize) -> bool {
    let list = schedule.actions(device);
    let backward = if schedule.pairs(device).contains(&(at + 1)) {
        list[at + 2]
    } else {
        list[at + 1]
    };
    let recompute = backward.with(ActionKind::Recompute);
    backward.kind.gives_input_gradient() && recompute == list[at]
}

/// Checks `mode`, applied to a legal schedule without recomputes, against the rules.
fn check(before: &CheckedSchedule, mode: Mode) {
    let plain = before.schedule();
    let with = mode.apply(plain);
    let (stages, m) = (plain.stages(), plain.micro_batches());
    for device in (0..plain.devices()).map(DeviceId) {
        assert_eq!(without(&with, device), plain.actions(device));
        assert_eq!(pairs(&with, device), pairs(plain, device));
        for (at, action) in with.actions(device).iter().enumerate() {
            assert!(action.kind != ActionKind::Recompute || stands_right(&with, device, at));
        }
    }
    for (stage, micro) in (0..stages).flat_map(|s| (0..m).map(move |i| (s, i))) {
        let wanted = before.is_training() && mode.wants(StageId(stage), MicroId(micro), m);
        let recompute = Action::new(stage, ActionKind::Recompute, micro);
        let all = with.iter().flat_map(|(_, list)| list);
        assert_eq!(
            all.filter(|action| **action == recompute).count(),
            usize::from(wanted)
        );
    }
    let after = with.clone().check().unwrap();
    assert_eq!(after.is_training(), before.is_training());
    assert_eq!(after.accumulates_in_order(), before.accumulates_in_order());
    for stage in (0..stages).map(StageId) {
        assert_eq!(after.peak_in_flight(stage), before.peak_in_flight(stage));
        assert_eq!(after.device_of(stage), before.device_of(stage));
    }
    for device in (0..plain.devices()).map(DeviceId) {
        let peaks = [before, &after].map(|schedule| schedule.peak_in_flight_on(device).to_bits());
        assert_eq!(peaks[0], peaks[1]);
    }
    // A recompute of zero time changes no time.
    assert_eq!(makespan(&after, 0.0), makespan(before, 0.0));
    assert!(makespan(&after, 2.0) >= makespan(before, 2.0));
    // Nothing is added twice, and the CSV can be read back.
    assert_eq!(mode.apply(&with), with);
    let csv = with.to_csv();
    assert_eq!(Schedule::from_csv(with.name(), &csv).unwrap(), with);
}

/// Simulates with equal passes, except the recompute.
fn makespan(schedule: &CheckedSchedule, recompute: f64) -> Micros {
    let micros = |time| Micros::new(time).unwrap();
    let stages = schedule.schedule().stages();
    let mut costs = Costs::uniform(stages, micros(3.0), micros(3.0), micros(4.0));
    for stage in (0..stages).map(StageId) {
        costs = costs.with_time(stage, ActionKind::Recompute, micros(recompute));
    }
    simulate(schedule, &costs).makespan()
}

#[test]
fn every_built_in_schedule_takes_recomputes() {
    let mut pairs = 0;
    for kind in ScheduleKind::ALL {
        let v = kind.default_chunks();
        for (p, m) in [(1, 1), (1, 4), (2, 1), (2, 7), (3, 4), (4, 8), (4, 16)] {
            let schedule = kind.generate(Shape::new(p, m).with_chunks(v)).unwrap();
            pairs += (0..p)
                .map(|device| schedule.schedule().pairs(DeviceId(device)).len())
                .sum::<usize>();
            for mode in [
                Mode::Never,
                Mode::ExceptLast,
                Mode::Always,
                Mode::Some(0x5dee_ce66_d123_4567),
            ] {
                check(&schedule, mode);
            }
        }
    }
    assert!(pairs > 0, "no schedule with overlapped pairs was looked at");
}

#[test]
fn the_recompute_runs_while_the_gradient_is_under_way() {
    let unit = Micros::new(1.0).unwrap();
    let schedule = ScheduleKind::GPipe.generate(Shape::new(2, 1)).unwrap();
    let with = Mode::Always.apply(schedule.schedule()).check().unwrap();
    let spans = |device| {
        let simulation = simulate(&with, &Costs::uniform(2, unit, unit, unit));
        let spans = simulation.timeline.spans_on(DeviceId(device)).to_vec();
        spans.iter().map(|s| s.start.get()).collect::<Vec<_>>()
    };
    // F, R, B: the second device runs its forward from 1, its recompute from 2 and has the gradient
    // by 5; the first has recomputed long before.
    assert_eq!(spans(1), [1.0, 2.0, 3.0]);
    assert_eq!(spans(0), [0.0, 1.0, 5.0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_built_in_schedule_takes_any_recomputes(
        kind in 0..ScheduleKind::ALL.len(),
        (p, v, m) in (1usize..6, 1usize..4, 1usize..12),
        mode in modes(),
    ) {
        let shape = Shape::new(p, m).with_chunks(v);
        let Ok(schedule) = ScheduleKind::ALL[kind].generate(shape) else { return Ok(()) };
        check(&schedule, mode);
    }

    /// Actions in any order and pairs anywhere: the verdict on legality does not change.
    #[test]
    fn recomputes_change_no_verdict(
        kind in 0..ScheduleKind::ALL.len(),
        (p, m) in (1usize..4, 1usize..6),
        swaps in proptest::collection::vec((any::<u16>(), any::<u16>()), 0..3),
        pairs in proptest::collection::vec(0usize..12, 0..4),
        keep_pairs in any::<bool>(),
        mode in modes(),
    ) {
        let kind = ScheduleKind::ALL[kind];
        let shape = Shape::new(p, m).with_chunks(kind.default_chunks());
        let checked = kind.generate(shape).unwrap();
        let plain = checked.schedule();
        let mut lists: Vec<Vec<Action>> = plain.iter().map(|(_, list)| list.to_vec()).collect();
        for (a, b) in swaps {
            let list = &mut lists[usize::from(a) % p];
            let at = usize::from(b) % list.len();
            let next = (at + 1) % list.len();
            list.swap(at, next);
        }
        let own = (0..p).map(|device| plain.pairs(DeviceId(device)).to_vec());
        let pairs = if keep_pairs { own.collect() } else { vec![pairs; p] };
        let mutant = Schedule::new("mutant", plain.stages(), m, lists).with_pairs(pairs);
        let with = mode.apply(&mutant);
        prop_assert_eq!(mutant.check().is_ok(), with.check().is_ok());
    }
}
