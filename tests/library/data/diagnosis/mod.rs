//! The verdict on synthetic bottlenecks, and the effect of its advice.

mod measured;
mod simulated;

use gpipe::data::{Change, Diagnosis, Limit, Phase};

use simulated::World;

/// A world with these working and waiting phases.
fn world(work: &[(Phase, f64)], idle: &[(Phase, f64)]) -> World {
    let mut world = World::default();
    for (phase, ms) in work {
        world.work[*phase as usize] = *ms;
    }
    for (phase, ms) in idle {
        world.idle[*phase as usize] = *ms;
    }
    world
}

/// A step that was shorter in a pause although the loader takes hardly any CPU time: other programs had less
/// to do just then.
#[test]
fn what_other_programs_take_is_not_put_down_to_the_loader() {
    let mut world = world(&[(Phase::Read, 0.1)], &[(Phase::Read, 2.0)]);
    world.step = 20.0;
    let mut measures = world.measures();
    assert_eq!(Diagnosis::of(&measures).limit, Limit::Compute);
    measures.step_alone_ms = Some(0.5 * measures.period_ms);
    assert_eq!(Diagnosis::of(&measures).limit, Limit::Compute);
}

/// Regression test: with other programs running, steps of some milliseconds were called contended because of
/// scheduler turns; in longer steps the same share is no coincidence.
#[test]
fn a_pause_tells_nothing_of_steps_that_are_shorter_than_turns_of_the_scheduler() {
    let of = |step: f64| {
        let mut world = world(&[(Phase::Map, 0.3 * step)], &[]);
        (world.step, world.cores) = (step, 4);
        let mut measures = world.measures();
        measures.step_alone_ms = Some(0.5 * measures.period_ms);
        Diagnosis::of(&measures).limit
    };
    assert_eq!(of(26.0), Limit::Contended(Phase::Map));
    assert_eq!(of(4.0), Limit::Compute);
}

/// Bottlenecks, and the expected limit of each.
#[allow(clippy::too_many_lines, reason = "a table")]
fn bottlenecks() -> Vec<(&'static str, World, Limit)> {
    use Phase::{Copy, Decode, Map, Read, Stack};
    let with = |world: World, change: fn(&mut World)| {
        let mut world = world;
        change(&mut world);
        world
    };
    let two = |world| with(world, |world| world.workers = 2);
    let heavy = |world| {
        with(world, |world| {
            (world.step, world.threads, world.cacheable) = (26.0, 2, true);
        })
    };
    let cached = |world| with(world, |world| world.cacheable = true);
    vec![
        (
            "a slow disk",
            world(&[(Map, 1.0)], &[(Read, 40.0)]),
            Limit::Io(Read),
        ),
        (
            "a slow disk, two workers",
            two(world(&[(Map, 1.0)], &[(Read, 100.0)])),
            Limit::Io(Read),
        ),
        (
            "a slow decoder",
            with(world(&[(Decode, 30.0)], &[]), |world| world.step = 10.0),
            Limit::Cpu(Decode),
        ),
        (
            "a slow map",
            with(world(&[(Read, 1.0), (Map, 30.0)], &[]), |world| {
                world.step = 12.0;
            }),
            Limit::Cpu(Map),
        ),
        (
            "a slow map, two workers, training elsewhere",
            two(cached(with(world(&[(Map, 60.0)], &[]), |world| {
                (world.step, world.threads) = (10.0, 1);
            }))),
            Limit::Cpu(Map),
        ),
        (
            "slow stacking",
            with(world(&[(Read, 2.0), (Stack, 30.0)], &[]), |world| {
                world.step = 10.0;
            }),
            Limit::Cpu(Stack),
        ),
        (
            "a slow copy",
            with(world(&[(Copy, 25.0), (Map, 2.0)], &[]), |world| {
                world.step = 10.0;
            }),
            Limit::Cpu(Copy),
        ),
        (
            "a slow copy beside a training that takes all cores",
            with(world(&[(Copy, 25.0)], &[]), |world| {
                (world.step, world.threads) = (2.0, 2);
                world.work[Map as usize] = 24.0;
            }),
            Limit::Cpu(Copy),
        ),
        (
            "a copy over a slow link",
            two(with(world(&[(Map, 4.0)], &[(Copy, 30.0)]), |world| {
                world.step = 10.0;
            })),
            Limit::Io(Copy),
        ),
        (
            "a heavy training",
            with(world(&[(Map, 1.0)], &[]), |world| {
                (world.step, world.threads) = (40.0, 2);
            }),
            Limit::Compute,
        ),
        (
            "a map that takes the training's cores",
            heavy(world(&[(Map, 40.0)], &[])),
            Limit::Contended(Map),
        ),
        (
            "the same, two workers",
            two(heavy(world(&[(Map, 40.0)], &[]))),
            Limit::Contended(Map),
        ),
        (
            "a decoder that takes the training's cores",
            two(heavy(world(&[(Decode, 20.0), (Map, 2.0)], &[]))),
            Limit::Contended(Decode),
        ),
        (
            "a disk and a decoder, the disk first",
            world(&[(Decode, 14.0)], &[(Read, 25.0)]),
            Limit::Io(Read),
        ),
        (
            "a slow disk behind a heavy training",
            two(with(world(&[(Map, 1.0)], &[(Read, 30.0)]), |world| {
                world.step = 45.0;
            })),
            Limit::Compute,
        ),
        (
            "batches that come unevenly",
            with(world(&[], &[(Read, 6.0)]), |world| {
                (world.every, world.long, world.step, world.prefetch) = (20, 20.0, 20.0, 1);
            }),
            Limit::Uneven,
        ),
        (
            "a network in the map",
            world(&[(Map, 5.0)], &[(Map, 50.0)]),
            Limit::Io(Map),
        ),
    ]
}

/// The world after a change.
fn changed(world: &World, change: Change) -> World {
    let mut other = world.clone();
    let scale = |other: &mut World, phases: &[Phase], factor: f64| {
        for phase in phases {
            other.work[*phase as usize] *= factor;
            other.idle[*phase as usize] *= factor;
        }
    };
    match change {
        Change::Workers(workers) => other.workers = workers,
        Change::Prefetch(batches) => other.prefetch = batches,
        Change::Cache => scale(&mut other, &[Phase::Read, Phase::Decode, Phase::Map], 0.01),
        Change::NarrowTypes => scale(&mut other, &[Phase::Stack, Phase::Copy], 0.25),
        Change::IntraOp(threads) => {
            other.step *= world.threads as f64 / threads as f64;
            other.threads = threads;
        }
        Change::Cheaper(phase) => other.work[phase as usize] /= 2.0,
        Change::Faster(phase) => other.idle[phase as usize] /= 2.0,
        other => panic!("nobody knows how to do {other:?}"),
    }
    other
}

#[test]
fn the_verdict_on_each_bottleneck_is_the_right_one() {
    for (name, world, limit) in bottlenecks() {
        let diagnosis = Diagnosis::of(&world.measures());
        assert_eq!(diagnosis.limit, limit, "{name}: {diagnosis:#?}");
    }
}

/// All of its advice, not only the first.
#[test]
fn what_it_advises_brings_at_least_half_of_what_it_predicts() {
    for (name, world, limit) in bottlenecks() {
        let diagnosis = Diagnosis::of(&world.measures());
        assert_eq!(
            diagnosis.remedies.is_empty(),
            limit == Limit::Compute,
            "{name}: {diagnosis:#?}"
        );
        let before = diagnosis.measures.period_ms;
        for remedy in &diagnosis.remedies {
            let after = changed(&world, remedy.change).measures().period_ms;
            let (promised, kept) = (before - remedy.period_ms, before - after);
            assert!(promised > 0.0, "{name}: {remedy}");
            assert!(
                kept >= 0.5 * promised,
                "{name}: {remedy}; it took {before:.1} ms and takes {after:.1}"
            );
        }
    }
}

/// If the training is the limit, twice the workers and prefetched batches bring nothing.
#[test]
fn a_loader_that_is_not_the_limit_cannot_be_improved() {
    for (name, world, limit) in bottlenecks() {
        if limit != Limit::Compute {
            continue;
        }
        let before = world.measures().period_ms;
        let mut more = world.clone();
        (more.workers, more.prefetch) = (2 * world.workers, 2 * world.prefetch);
        let after = more.measures().period_ms;
        assert!(after > 0.95 * before, "{name}: {before} and {after}");
    }
}

/// Impossible numbers, and no numbers at all.
#[test]
fn a_verdict_has_no_number_that_is_none() {
    let nothing = Diagnosis::of(&gpipe::data::InputMeasures::default());
    assert_eq!(nothing.limit, Limit::Compute);
    assert!(nothing.remedies.is_empty(), "{nothing:?}");
    for (_, world, _) in bottlenecks() {
        let mut measures = world.measures();
        (measures.workers, measures.cores, measures.step_alone_ms) = (0, 0, None);
        measures.training_cpu_ms = 0.0;
        let diagnosis = Diagnosis::of(&measures);
        for remedy in &diagnosis.remedies {
            let numbers = [remedy.period_ms, remedy.speedup];
            assert!(numbers.iter().all(|own| own.is_finite()), "{diagnosis:?}");
        }
        let json = serde_json::to_string(&diagnosis).unwrap();
        let read: Diagnosis = serde_json::from_str(&json).unwrap();
        assert_eq!(read, diagnosis);
    }
}

/// Regression test: `contended in map: batches were waited for 0.0 % of the time` did not say what waited for
/// what.
#[test]
fn it_is_told_in_a_sentence_what_waited_for_what() {
    for (limit, parts) in [
        (
            Limit::Io(Phase::Read),
            [
                "I/O-bound in read: ",
                "in which the loader waits for a disk, a network or a lock",
            ],
        ),
        (
            Limit::Cpu(Phase::Map),
            [
                " is waiting for batches, in which the loader computes; ",
                "changing samples (`map`) takes",
            ],
        ),
        (
            Limit::Contended(Phase::Map),
            [
                "contended in map: ",
                " is waiting for batches, and the loader takes ",
            ],
        ),
        (
            Limit::Uneven,
            ["uneven: some batches load slowly, and ", " % of the time "],
        ),
        (
            Limit::Compute,
            ["keeps up (", " % of the time is waiting for batches)"],
        ),
    ] {
        let (_, world, _) = (bottlenecks().into_iter())
            .find(|(.., own)| *own == limit)
            .unwrap();
        let told = Diagnosis::of(&world.measures()).to_string();
        for part in parts {
            assert!(told.contains(part), "{told}");
        }
        // Relative to the speed over elapsed time: a batch's mean time was compared with a step's median.
        let advises = told.ends_with(" times as fast");
        assert_eq!(advises, limit != Limit::Compute, "{told}");
    }
}
