//! `auto` with tight memory, and its lower bound.

use gpipe_partitioner::{
    ActionKind, Auto, Bytes, Costs, EdgeTimes, Effort, Micros, OffloadTimes, Shape, StageId,
    StageMemory, StageTimes, auto, auto_within,
};
use proptest::prelude::*;

/// Chunks whose forward and halves of the backward take a unit each; single micro-batches may be
/// recomputed, and then keep a tenth.
fn equal_passes(shape: Shape) -> Costs {
    let unit = Micros::new(1.0).unwrap();
    let memory = StageMemory {
        activation: Bytes(10),
        recomputable: Bytes(9),
        ..StageMemory::default()
    };
    let costs = Costs::uniform(shape.stages(), unit, unit, unit);
    (0..shape.stages())
        .map(StageId)
        .fold(costs, |costs, stage| {
            let costs = costs.with_memory(stage, memory);
            costs.with_time(stage, ActionKind::Recompute, unit)
        })
}

/// Runs `auto` with this percentage of 1F1B's memory.
fn found(p: usize, m: usize, percent: u64) -> Auto {
    let shape = Shape::new(p, m).with_chunks(2);
    let caps = vec![Some(Bytes(20 * p as u64 * percent / 100)); p];
    let found = auto(shape, &equal_passes(shape), &caps, None).unwrap();
    let peaks = found.simulation.peak_bytes().into_iter().zip(caps);
    assert!(peaks.into_iter().all(|(peak, cap)| Some(peak) <= cap));
    found
}

/// Returns the units that a device loses, and the lower bound of these.
fn lost(found: &Auto, m: usize) -> (f64, f64) {
    let work = 6.0 * m as f64;
    (
        found.simulation.makespan().get() - work,
        found.lower_bound.get() - work,
    )
}

/// Without periodic orders, 14 units were lost at 8 x 16 and 15 at 8 x 32 with four fifths of the memory,
/// 9 at 4 x 8 and 20 at 8 x 16 with less; v-half, which fits in the first two, loses 17, and v-min 11 and
/// 27.
#[test]
fn orders_that_repeat_lose_a_third_less() {
    let rows = [
        ((8, 16, 80), 11.0),
        ((8, 32, 80), 11.0),
        ((8, 16, 90), 9.0),
        ((4, 8, 70), 7.0),
        ((8, 16, 60), 17.0),
        ((8, 16, 50), 23.0),
    ];
    for ((p, m, percent), most) in rows {
        let (own, least) = lost(&found(p, m, percent), m);
        assert!(own <= most, "{p} {m} {percent}: {own}");
        assert!(least <= own);
    }
}

/// Regression: the bound did not prove that v-half is the best at four fifths of 1F1B's memory on 4
/// devices, nor `auto`'s result at nine tenths.
#[test]
fn the_best_is_proved_where_memory_is_tight() {
    for (p, m, percent, best) in [
        (4, 8, 80, 5.0),
        (4, 16, 80, 5.0),
        (4, 16, 90, 4.0),
        (8, 16, 80, 11.0),
        (8, 16, 90, 9.0),
    ] {
        let found = found(p, m, percent);
        assert_eq!(lost(&found, m), (best, best), "{p} {m} {percent}");
        assert!(found.gap() < 1e-9);
    }
    // V-min loses 11 units, and no schedule a third less.
    for percent in [50, 60] {
        let (_, least) = lost(&found(4, 16, percent), 16);
        assert!(least >= 9.0, "{percent}: {least}");
    }
}

/// Times, links, memory: activations that may be recomputed, offloaded, or partly freed after the input
/// gradient.
fn costs(stages: usize) -> impl Strategy<Value = Costs> {
    let times = (1u32..9, 1u32..9, 0u32..9, 0u32..9, 0u32..4, 0u32..6);
    let bytes = (1u64..30, 0u64..30, 0u64..30, 0u64..30, 0u64..3, 0u64..4);
    let stage = (times, bytes, any::<[bool; 3]>());
    proptest::collection::vec(stage, stages).prop_map(|all| {
        let micros = |time: u32| Micros::new(f64::from(time)).unwrap();
        let times = all
            .iter()
            .map(|&((f, i, w, again, _, saved), ..)| StageTimes {
                forward: micros(f),
                backward: micros((i + w).saturating_sub(saved).max(1)),
                input: micros(i),
                weight: micros(w),
                recompute: micros(again),
            });
        let bare = Costs::new(times.collect());
        let each = all.into_iter().enumerate();
        each.fold(
            bare,
            |costs, (stage, (times, bytes, [drops, halves, leaves]))| {
                let (kept, recomputable, after, offloadable, working, gradients) = bytes;
                let stage = StageId(stage);
                let memory = StageMemory {
                    activation: Bytes(kept),
                    recomputable: Bytes(if drops { recomputable % (kept + 1) } else { 0 }),
                    kept_for_weight: halves.then_some(Bytes(after % (kept + 1))),
                    offloadable: Bytes(if leaves { offloadable % (kept + 1) } else { 0 }),
                    working: Bytes(working),
                    gradients: Bytes(gradients),
                    ..StageMemory::default()
                };
                let way = EdgeTimes {
                    occupancy: micros(times.4),
                    latency: Micros::ZERO,
                };
                let ways = OffloadTimes {
                    to_host: way,
                    to_device: way,
                    pieces: 1,
                };
                (costs.with_memory(stage, memory))
                    .with_edge(stage, way)
                    .with_single_offload(stage, ways)
            },
        )
    })
}

fn problem() -> impl Strategy<Value = (Shape, Costs, u64)> {
    (2usize..4, 1usize..3, 1usize..7).prop_flat_map(|(p, v, m)| {
        let shape = Shape::new(p, m).with_chunks(v);
        (Just(shape), costs(p * v), 5u64..150)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// The bound before any search is below the results of searches.
    #[test]
    fn no_schedule_is_shorter_than_the_bound((shape, costs, cap) in problem()) {
        let caps = vec![Some(Bytes(cap)); shape.devices];
        let effort = Effort { states: 100, moves: 500 };
        let Ok(best) = auto_within(shape, &costs, &caps, None, effort) else {
            return Ok(());
        };
        // (Less memory may suffice with halves out of order, which only a search tries.)
        let Ok(before) = auto_within(shape, &costs, &caps, None, Effort::NONE) else {
            return Ok(());
        };
        let (bound, best) = (before.lower_bound.get(), best.simulation.makespan().get());
        prop_assert!(bound <= best * (1.0 + 1e-9), "{bound} {best}");
    }
}
