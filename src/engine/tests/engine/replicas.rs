//! Replicas of a pipeline compute the same as one pipeline, to the bit and in the same order of
//! additions, on one engine and on several.

use crate::support::leafy::{Leafy, Value};
use crate::support::replicas::{Replicas, builder, shares};
use crate::support::{chunked, recomputing, watched};
use gpipe_engine::{
    EdgeId, Engine, EngineError, Entry, EntryError, Mesh, Program, Topology, TopologyError,
};
use gpipe_partitioner::{CheckedSchedule, DeviceId, MicroId, Schedule, ScheduleKind, StageId};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Fewer micro-batches than replicas, odd numbers, and even ones.
const MICROS: [usize; 4] = [1, 3, 5, 8];

fn two_steps(mut replicas: Replicas) {
    replicas.good_step();
    replicas.good_step();
}

#[test]
fn one_two_and_four_replicas_sum_as_one_pipeline_does() {
    for kind in ScheduleKind::ALL {
        watched(move || {
            for (p, d) in (1..=3).flat_map(|p| [1, 2, 4].map(|d| (p, d))) {
                for micros in MICROS {
                    two_steps(Replicas::whole(&shares(kind, p, d, micros), None));
                }
            }
        });
    }
}

#[test]
fn replicas_that_recompute_and_take_turns_sum_as_one_pipeline_does() {
    for kind in [
        ScheduleKind::OneFOneB,
        ScheduleKind::Zbv,
        ScheduleKind::InterleavedZb,
    ] {
        watched(move || {
            for (d, micros, cores) in [(2, 5, 1), (2, 1, 2), (4, 3, 2)] {
                let shares = shares(kind, 2, d, micros).into_iter();
                let shares = shares.map(|own| own.map(|own| recomputing(&own)));
                two_steps(Replicas::whole(&shares.collect::<Vec<_>>(), Some(cores)));
            }
        });
    }
}

#[test]
fn actions_that_others_wait_for_are_more_urgent_than_exchanges() {
    watched(|| {
        // M = 3: one micro-batch and two.
        let shares = shares(ScheduleKind::GPipe, 1, 2, 3);
        let mut replicas = Replicas::whole(&shares, Some(1));
        for _ in 0..3 {
            let settings = replicas.settings();
            replicas.good_step_of(&settings);
            let did = settings.log.lock().clone();
            let steps = did
                .iter()
                .filter(|(_, _, what)| what != "begin" && what != "end");
            let steps: Vec<_> = steps
                .map(|(_, own, what)| format!("{own}:{what}"))
                .collect();
            let expected = "1:0F1 1:0F2 1:0B1 0:0F0 0:0B0 1:0B2 0:x0(0) 1:x0(0) 0:x1(0) 1:x1(0) \
                            0:x2(0) 1:x2(0)";
            assert_eq!(steps.join(" "), expected);
        }
    });
}

/// Several distributions of the devices of a mesh over processes.
fn splits(mesh: Mesh) -> Vec<Vec<usize>> {
    let all = || (0..mesh.devices()).map(DeviceId);
    let mut splits: Vec<Vec<usize>> = vec![
        all().map(|device| mesh.replica_of(device)).collect(),
        all()
            .map(|device| mesh.of_pipeline(device).index())
            .collect(),
        all()
            .map(|device| device.index() % 3.min(mesh.devices()))
            .collect(),
        all()
            .map(|device| device.index() % 4.min(mesh.devices()))
            .collect(),
        all()
            .map(|device| usize::from(device.index() > 0))
            .collect(),
        all()
            .map(|device| 2 * device.index() / mesh.devices())
            .collect(),
        vec![0; mesh.devices()],
    ];
    splits.sort();
    splits.dedup();
    splits
}

#[test]
fn replicas_over_several_engines_sum_as_one_pipeline_does() {
    for kind in ScheduleKind::ALL {
        watched(move || {
            for (p, d, micros) in [(1, 4, 3), (2, 2, 3), (2, 2, 1), (3, 2, 5)] {
                for split in splits(Mesh::new(p, d)) {
                    two_steps(Replicas::parts(&shares(kind, p, d, micros), &split));
                }
            }
        });
    }
}

fn list(row: &str) -> Vec<gpipe_partitioner::Action> {
    row.split(' ')
        .map(|action| action.parse().unwrap())
        .collect()
}

#[test]
fn a_stage_begins_its_exchange_after_its_last_backward_and_ends_it_after_all_actions() {
    watched(|| {
        let two = list("0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1");
        let two = Schedule::new("two", 2, 2, vec![two]).check().unwrap();
        let one = list("0F0 1F0 1I0 0I0 0W0 1W0");
        let one = Schedule::new("one", 2, 1, vec![one]).check().unwrap();
        let behind = "x1(0) x1(1) x2(0) x2(1) end end";
        let first = format!("0F0 1F0 1I0 0I0 0W0 x0(0) 1W0 x0(1) {behind}");
        let second = format!("0F1 1F1 1B1 0B1 0F2 1F2 1B2 x0(1) 0B2 x0(0) {behind}");
        did(&[Some(one.clone()), Some(two)], [first.clone(), second]);
        did(&[None, Some(one)], [format!("x0(0) x0(1) {behind}"), first]);
    });
}

#[test]
fn what_comes_after_an_exchange_is_prefetched_during_the_action_before_it() {
    watched(|| {
        let two = list("0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1");
        let two = || {
            Schedule::new("two", 2, 2, vec![two.clone()])
                .check()
                .unwrap()
        };
        let mut replicas = Replicas::whole(&[Some(two()), Some(two())], None);
        let settings = replicas.settings();
        replicas.good_step_of(&settings);
        let did = settings.log.lock().clone();
        let did: Vec<_> = did
            .iter()
            .map(|(_, own, what)| (*own, what.as_str()))
            .collect();
        let at = |what| did.iter().position(|own| *own == (0, what)).unwrap();
        assert!(at("1B1") < at("x0(1)") && at("x0(1)") < at("0B1"));
        let told = settings.prefetched.lock().clone();
        let told: Vec<_> = told.into_iter().filter(|(own, _)| *own == 0).collect();
        let told: Vec<_> = told.into_iter().map(|(_, what)| what).collect();
        let expected = [
            "1B0 after 0F1",
            "0B0 after 1F1",
            "1B1 after 1B0",
            "0B1 after 0B0",
        ];
        assert_eq!(told, expected);
    });
}

/// Checks the log of each of two replicas with one device each, after the begin of a step.
fn did(replicas: &[Option<CheckedSchedule>], expected: [String; 2]) {
    let mut replicas = Replicas::whole(replicas, None);
    let settings = replicas.settings();
    replicas.good_step_of(&settings);
    let did = settings.log.lock().clone();
    for (replica, expected) in expected.into_iter().enumerate() {
        let own = did
            .iter()
            .filter(|(_, own, what)| *own == replica && what != "begin");
        let own: Vec<_> = own.map(|(_, _, what)| what.as_str()).collect();
        assert_eq!(own.join(" "), expected);
    }
}

#[test]
fn the_timeline_has_the_exchanges_beside_the_actions() {
    watched(|| {
        let shares = shares(ScheduleKind::GPipe, 2, 2, 1);
        let mut replicas = Replicas::whole(&shares, None);
        let settings = replicas.settings();
        let outcome = replicas.step(&settings).pop().unwrap().unwrap();
        let timeline = outcome.timeline;
        assert_eq!(timeline.devices(), 4);
        let exchanges = timeline.exchanges().iter();
        let mut places: Vec<_> = exchanges.map(|own| (own.device, own.stage)).collect();
        places.sort_unstable();
        let place = |device, stage| (DeviceId(device), StageId(stage));
        assert_eq!(places, [place(0, 0), place(1, 0), place(2, 1), place(3, 1)]);
        for exchange in timeline.exchanges() {
            // It ends when all copies have the sum, for which all must have begun.
            let all = timeline.exchanges().iter();
            let mut copies = all.filter(|own| own.stage == exchange.stage);
            assert!(copies.all(|own| exchange.end >= own.start));
            // The replica without micro-batches has no spans on this device.
            for span in timeline.spans_on(exchange.device) {
                assert!(span.end <= exchange.start);
            }
        }
        // The only micro-batch belongs to the second replica.
        let busy: Vec<_> = outcome.events.iter().map(Vec::len).collect();
        assert_eq!(busy, [0, 2, 0, 2]);
    });
}

#[test]
fn a_program_numbers_values_of_exchanges_alike_in_every_process() {
    for kind in ScheduleKind::ALL {
        let replicas = shares(kind, 2, 3, 5);
        let stages = replicas[1].as_ref().unwrap().schedule().stages();
        let topology = Topology::chain(stages);
        let program = |here: &[DeviceId]| {
            let here = |device| here.is_empty() || here.contains(&device);
            Program::replicated(replicas.clone(), &topology, 2, here).unwrap()
        };
        let whole = program(&[]);
        let mesh = whole.mesh();
        assert_eq!((mesh.devices(), whole.micro_batches()), (6, 5));
        let mut numbers = BTreeSet::new();
        for device in (0..6).map(DeviceId) {
            let own = program(&[device]);
            let arrivals: Vec<_> = own.arrivals(device).collect();
            assert_eq!(arrivals, whole.arrivals(device).collect::<Vec<_>>());
            let to: Vec<_> = arrivals.iter().map(|(to, _)| *to).collect();
            let mut sent = Vec::new();
            for other in (0..6).map(DeviceId) {
                let here = arrivals.iter().filter(|(_, from)| *from == other).count();
                let sends: Vec<_> = own.sends(other).collect();
                assert_eq!(sends.len(), here);
                // In order, whether or not the full lists of that replica are known.
                let beside = mesh.of_pipeline(other).index() ^ 1;
                let beside = mesh.device(DeviceId(beside), mesh.replica_of(other));
                let more = program(&[device, beside]);
                let there = more.sends(other).filter(|to| to.device == device);
                assert!(beside == device || there.eq(sends.iter().copied()));
                sent.extend(sends);
            }
            sent.sort_by_key(|address| address.slot);
            assert_eq!(sent, to);
            for address in to {
                assert!(numbers.insert(own.number(address)));
                assert_eq!(own.number(address), whole.number(address));
            }
        }
    }
}

#[test]
fn a_replica_elsewhere_sends_in_the_order_of_its_own_schedule() {
    let replica = |last: &str| {
        let rows = vec![
            list(&format!("0F0 2F0 2I0 0I0 {last}")),
            list("1F0 1I0 1W0"),
        ];
        Some(Schedule::new(last, 3, 1, rows).check().unwrap())
    };
    let replicas = vec![replica("0W0 2W0"), replica("2W0 0W0")];
    let sends = |here: &[DeviceId]| {
        let here = |device| here.contains(&device);
        let program = Program::replicated(replicas.clone(), &Topology::chain(3), 2, here);
        let program = program.unwrap();
        let sends = program
            .sends(DeviceId(1))
            .filter(|to| to.device == DeviceId(0));
        let slots = sends.map(|to| to.slot);
        slots.collect::<Vec<_>>()
    };
    let alone = sends(&[DeviceId(0)]);
    // Stage 2 completes before stage 0 there, and after it here.
    assert_eq!(alone.len(), 4);
    assert!(alone[0] > alone[1] && alone[1..].is_sorted(), "{alone:?}");
    assert_eq!(sends(&[DeviceId(0), DeviceId(3)]), alone);
}

#[test]
fn a_program_of_one_replica_has_no_exchange() {
    let schedule = chunked(ScheduleKind::Zbv, 2, 3);
    let topology = Topology::chain(4);
    let own = Program::replicated(vec![Some(schedule.clone())], &topology, 2, |_| true).unwrap();
    let plain = Program::new(schedule, &topology).unwrap();
    assert_eq!(format!("{own:?}"), format!("{plain:?}"));
}

#[test]
fn a_program_makes_the_schedules_that_it_does_not_keep_when_asked_for_them() {
    let kind = ScheduleKind::OneFOneB;
    let replicas = shares(kind, 2, 4, 3);
    let program = Program::replicated(replicas.clone(), &Topology::chain(2), 2, |_| true);
    let made = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&made);
    let again = move |replica: usize| {
        asked.lock().push(replica);
        replicas[replica].clone().unwrap()
    };
    let program = program.unwrap().without_schedules(again);
    assert!(program.schedule_of(0).is_none() && program.schedule_of(4).is_none());
    assert_eq!((program.micro_batches(), program.mesh().devices()), (3, 8));
    assert_eq!(*made.lock(), [0; 0]);
    for _ in 0..2 {
        assert_eq!(program.schedule_for_now().schedule().name(), "1f1b");
    }
    assert_eq!(std::mem::take(&mut *made.lock()), [1, 1]);
    let devices = (0..3).map(|stage| program.device_of(StageId(stage)));
    let expected = [Some(DeviceId(0)), Some(DeviceId(1)), None];
    assert!(devices.eq(expected) && program.is_training());
    for _ in 0..2 {
        let first = program.schedule().schedule();
        assert_eq!((first.name(), first.micro_batches()), ("1f1b", 1));
        assert!(program.schedule_of(1).is_some() && program.schedule_of(3).is_some());
        assert_eq!(*made.lock(), [1, 3]);
    }
}

fn refused(replicas: Vec<Option<CheckedSchedule>>) -> String {
    let program = Program::replicated(replicas, &Topology::chain(4), 2, |_| true);
    program.unwrap_err().to_string()
}

#[test]
fn schedules_that_do_not_make_replicas_are_refused() {
    let loops = chunked(ScheduleKind::Interleaved1F1B, 2, 2);
    let vee = chunked(ScheduleKind::Zbv, 2, 2);
    let wrong = [
        vee.clone(),
        chunked(ScheduleKind::OneFOneB, 4, 2),
        chunked(ScheduleKind::OneFOneB, 2, 2),
    ];
    for other in wrong {
        let name = other.schedule().name().to_owned();
        let words = refused(vec![None, Some(loops.clone()), Some(other)]);
        let start = format!("schedule `{name}` of replica 2 differs from `interleaved-1f1b`");
        assert!(words.starts_with(&start), "{words}");
    }
    let four = |kind| Some(chunked(kind, 4, 2));
    let words = refused(vec![
        four(ScheduleKind::GPipe),
        four(ScheduleKind::ForwardOnly),
    ]);
    assert!(words.contains("all train or none does"), "{words}");
    for none in [Vec::new(), vec![None, None]] {
        let error = Program::replicated(none, &Topology::chain(1), 2, |_| true).unwrap_err();
        assert!(
            matches!(error, TopologyError::NoMicroBatches { .. }),
            "{error}"
        );
    }
    let three = Program::replicated(vec![None, Some(vee)], &Topology::chain(3), 2, |_| true);
    assert!(matches!(three, Err(TopologyError::Stages { .. })));
}

/// Returns an engine of replicas with these stages on their devices.
fn engine(replicas: usize, devices: &[&[usize]]) -> Result<Engine<Leafy>, EngineError> {
    let mesh = Mesh::new(1, replicas);
    let build = |(device, stages): (usize, &&[usize])| {
        let stages = stages.iter().copied().map(StageId).collect();
        builder(stages, mesh.replica_of(DeviceId(device)), replicas)
    };
    let builders = devices.iter().enumerate().map(build).collect();
    Engine::replicated(replicas, builders, None)
}

#[test]
fn each_replica_has_every_stage_once() {
    watched(|| {
        let words = |replicas, devices: &[&[usize]]| {
            engine(replicas, devices).map(drop).unwrap_err().to_string()
        };
        assert!(words(2, &[&[0], &[0], &[1], &[0]]).starts_with("stage 0 of replica 1 is built 2"));
        assert!(words(2, &[&[0], &[0], &[1], &[]]).starts_with("stage 1 of replica 1 is built 0"));
        assert!(words(1, &[&[0], &[0]]).starts_with("stage 0 is built 2 times"));
        assert!(matches!(
            engine(2, &[&[0], &[0], &[1]]),
            Err(EngineError::Uneven {
                devices: 3,
                replicas: 2
            })
        ));
        assert!(matches!(engine(2, &[]), Err(EngineError::NoDevices)));
    });
}

#[test]
fn a_program_for_other_replicas_is_refused() {
    watched(|| {
        let gpipe = |p, m| Some(chunked(ScheduleKind::GPipe, p, m));
        let step = |engine: &mut Engine<Leafy>, replicas: Vec<_>, stages| {
            let program = Program::replicated(replicas, &Topology::chain(stages), 2, |_| true);
            let program = Arc::new(program.unwrap());
            engine
                .step(&program, Arc::default(), Vec::new())
                .unwrap_err()
        };
        let mut engine = engine(2, &[&[0], &[0], &[1], &[1]]).unwrap();
        let wrong = step(&mut engine, vec![gpipe(4, 1)], 4);
        let words = "schedule `gpipe` is for 1 replicas, the engine has 2";
        assert_eq!(wrong.to_string(), words);
        let wrong = step(&mut engine, vec![gpipe(2, 1)], 2);
        assert!(matches!(wrong, EngineError::Devices { .. }), "{wrong}");
        // Micro-batch 1 is the first of the second replica.
        let wrong = step(&mut engine, vec![gpipe(2, 1), gpipe(2, 1)], 2);
        assert_eq!(wrong.to_string(), "no value for edge 0, micro-batch 0");
    });
}

#[test]
fn entries_have_the_numbers_of_all_replicas() {
    watched(|| {
        let mut replicas = Replicas::whole(&shares(ScheduleKind::GPipe, 2, 2, 3), None);
        let settings = Arc::new(replicas.settings());
        let rank = &mut replicas.ranks[0];
        let mut step = |micros: &[usize]| {
            let entry = |micro: &usize| Entry {
                edge: EdgeId(0),
                micro: MicroId(*micro),
                value: Value::Number(0),
            };
            let entries = micros.iter().map(entry).collect();
            match rank
                .engine
                .step(&rank.program, Arc::clone(&settings), entries)
            {
                Err(EngineError::Entry(error)) => error,
                other => panic!("{other:?}"),
            }
        };
        let (edge, micro) = (EdgeId(0), MicroId);
        let missing = |m| EntryError::Missing {
            edge,
            micro: micro(m),
        };
        assert_eq!(step(&[0, 1]), missing(2));
        assert_eq!(step(&[1, 2]), missing(0));
        let (twice, unwanted) = (micro(2), micro(3));
        let twice = EntryError::Twice { edge, micro: twice };
        assert_eq!(step(&[2, 0, 1, 2]), twice);
        let unwanted = EntryError::Unwanted {
            edge,
            micro: unwanted,
        };
        assert_eq!(step(&[2, 0, 1, 3]), unwanted);
        replicas.good_step();
    });
}

#[test]
fn jobs_reach_every_copy_or_the_one_that_is_asked_for() {
    watched(|| {
        let mut engine = engine(2, &[&[0, 3], &[0, 3], &[1, 2], &[1, 2]]).unwrap();
        let places = engine
            .on_each(|id, stage| Ok((id.index(), stage.replica)))
            .unwrap();
        let all: Vec<_> = (0..4).flat_map(|stage| [(stage, 0), (stage, 1)]).collect();
        assert_eq!(places, all);
        assert_eq!((engine.stages(), engine.devices()), (8, 4));
        assert_eq!(engine.mesh(), Mesh::new(2, 2));
        let copies: Vec<_> = engine.copies_of(StageId(2)).collect();
        assert_eq!(copies, [DeviceId(2), DeviceId(3)]);
        assert_eq!(engine.device_of(StageId(2)), Some(DeviceId(2)));
        for replica in 0..2 {
            let found = engine.on_copy(StageId(2), replica, |stage| Ok((stage.id, stage.replica)));
            assert_eq!(found.unwrap(), (StageId(2), replica));
        }
        let first = engine.on_stage(StageId(2), |stage| Ok(stage.replica));
        assert_eq!(first.unwrap(), 0);
        let none = engine.on_copy(StageId(2), 2, |_| Ok(())).unwrap_err();
        let words = "stage 2 of replica 2 is not here: the engine has 2 replicas";
        assert_eq!(none.to_string(), words);
        let failed = engine.on_copy(StageId(1), 1, |_| anyhow::bail!("no") as anyhow::Result<()>);
        let words = "stage 1 of replica 1, layer `leafy.1`, job: no";
        assert_eq!(failed.unwrap_err().to_string(), words);
    });
}
