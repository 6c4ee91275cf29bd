//! `check` against an executor written independently: a schedule with a mutation
//! is rejected exactly when brute force cannot run it.

use gpipe_partitioner::{Action, ActionKind, DeviceId, Schedule, ScheduleKind, Shape};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

type Lists = Vec<Vec<Action>>;

/// Whether the lists can run to their end, by the rules alone: a set of done actions, with all
/// devices tried again and again.
fn runs(stages: usize, micros: usize, lists: &Lists) -> bool {
    let mut count: BTreeMap<(usize, usize, char), usize> = BTreeMap::new();
    let mut homes: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (device, list) in lists.iter().enumerate() {
        for a in list {
            *count
                .entry((a.stage.0, a.micro.0, a.kind.letter()))
                .or_default() += 1;
            homes.entry(a.stage.0).or_default().insert(device);
        }
    }
    let training = count.keys().any(|key| key.2 != 'F');
    let of = |s, i, k| count.get(&(s, i, k)).copied().unwrap_or(0);
    let complete = (0..stages).all(|s| {
        (0..micros).all(|i| {
            let backward = (of(s, i, 'B'), of(s, i, 'I'), of(s, i, 'W'));
            let whole = matches!(backward, (1, 0, 0) | (0, 1, 1));
            let none = backward == (0, 0, 0);
            of(s, i, 'F') == 1 && of(s, i, 'R') <= 1 && if training { whole } else { none }
        })
    });
    let in_range = count.keys().all(|&(s, i, _)| s < stages && i < micros);
    if !complete || !in_range || homes.values().any(|devices| devices.len() > 1) {
        return false;
    }
    let mut done: BTreeSet<(usize, usize, char)> = BTreeSet::new();
    let mut at = vec![0; lists.len()];
    loop {
        let mut moved = false;
        for (device, list) in lists.iter().enumerate() {
            let Some(a) = list.get(at[device]) else {
                continue;
            };
            let (s, i) = (a.stage.0, a.micro.0);
            let gradient = |s| done.contains(&(s, i, 'B')) || done.contains(&(s, i, 'I'));
            let forward = |s| done.contains(&(s, i, 'F'));
            let may = match a.kind {
                ActionKind::Forward => s == 0 || forward(s - 1),
                ActionKind::Recompute => forward(s) && !gradient(s),
                ActionKind::Backward | ActionKind::BackwardInput => {
                    forward(s) && (s + 1 == stages || gradient(s + 1))
                }
                ActionKind::BackwardWeight => done.contains(&(s, i, 'I')),
            };
            if may {
                done.insert((s, i, a.kind.letter()));
                at[device] += 1;
                moved = true;
            }
        }
        if !moved {
            return at.iter().zip(lists).all(|(&at, list)| at == list.len());
        }
    }
}

fn lists(schedule: &Schedule) -> Lists {
    (0..schedule.devices())
        .map(|device| schedule.actions(DeviceId(device)).to_vec())
        .collect()
}

/// Applies one mutation; `a`, `b` and `c` choose its place.
fn mutate(lists: &mut Lists, how: usize, a: usize, b: usize, c: usize) {
    let device = a % lists.len();
    let other = c % lists.len();
    let length = lists[device].len();
    if length == 0 {
        return;
    }
    let (first, second) = (b % length, c % length);
    match how {
        0 => drop(lists[device].remove(first)),
        1 => {
            let action = lists[device][first];
            lists[device].insert(second, action);
        }
        2 => lists[device].swap(first, second),
        3 => {
            let action = lists[device].remove(first);
            let place = b % (lists[other].len() + 1);
            lists[other].insert(place, action);
        }
        4 => {
            let next = (first + 1) % length;
            lists[device].swap(first, next);
        }
        5 => {
            let action = lists[device][first];
            lists[device][first] = action.with(ActionKind::ALL[c % 5]);
        }
        _ => {
            let action = lists[device][first].with(ActionKind::Recompute);
            lists[device].insert(second, action);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn check_agrees_with_brute_force(
        (p, v, m) in (1usize..5, 1usize..3, 1usize..6),
        kind in 0..ScheduleKind::ALL.len(),
        mutations in proptest::collection::vec((0usize..7, any::<u16>(), any::<u16>(), any::<u16>()), 0..4),
    ) {
        let shape = Shape::new(p, m).with_chunks(v);
        let Ok(schedule) = ScheduleKind::ALL[kind].generate(shape) else { return Ok(()) };
        let (stages, mut lists) = (p * v, lists(schedule.schedule()));
        prop_assert!(runs(stages, m, &lists));
        for &(how, a, b, c) in &mutations {
            mutate(&mut lists, how, a.into(), b.into(), c.into());
        }
        let expected = runs(stages, m, &lists);
        let checked = Schedule::new("mutant", stages, m, lists).check();
        prop_assert_eq!(checked.is_ok(), expected, "{:?}", checked.err());
    }
}
