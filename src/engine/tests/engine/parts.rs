//! Several engines, each with a part of the devices, compute the same as one engine; a step counts
//! in all of them or in none.

use crate::support::world::{Rank, Results, World, builder, in_world, together};
use crate::support::{Fault, Gate, How, Settings, When, chunked, entries, recomputing, watched};
use gpipe_engine::{
    Address, Ballot, Carrier, Door, Edge, End, Engine, EngineError, InMemory, Lost, Phase, Program,
    Topology, Verdict,
};
use gpipe_partitioner::{CheckedSchedule, DeviceId, MicroId, ScheduleKind, StageId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Splits of the devices in order and alternating, over 2 and over all ranks.
fn splits(devices: usize) -> Vec<Vec<usize>> {
    let halves = (0..devices).map(|device| 2 * device / devices);
    let by_turns = (0..devices).map(|device| device % 2);
    let mut all = vec![halves.collect(), by_turns.collect(), (0..devices).collect()];
    all.sort();
    all.dedup();
    all
}

/// A chain with an edge from the first stage to the last.
fn with_skip(stages: usize) -> Topology {
    let mut edges: Vec<Edge> = {
        let chain = Topology::chain(stages);
        let ends = (0..stages).map(|stage| End::Stage(StageId(stage)));
        let out = ends.flat_map(|end| chain.outgoing(end).collect::<Vec<_>>());
        let all = chain.outgoing(End::Caller).chain(out.collect::<Vec<_>>());
        all.map(|(_, edge)| edge).collect()
    };
    if stages > 2 {
        edges.push(Edge {
            from: End::Stage(StageId(0)),
            to: End::Stage(StageId(stages - 1)),
            gradient: true,
        });
    }
    Topology::new(stages, edges).unwrap()
}

fn check(schedule: &CheckedSchedule, topology: &Arc<Topology>, turns: bool) {
    for split in splits(schedule.schedule().devices()) {
        let mut world = World::new(schedule, topology, &split, turns);
        world.good_step(5);
        world.good_step(1000);
    }
}

#[test]
fn every_schedule_over_several_engines_gives_what_one_gives() {
    watched(|| {
        for kind in ScheduleKind::ALL {
            for (p, m) in [(2, 1), (2, 4), (3, 3), (4, 5)] {
                let plain = chunked(kind, p, m);
                let stages = plain.schedule().stages();
                let chain = Arc::new(Topology::chain(stages));
                let skip = Arc::new(with_skip(stages));
                check(&plain, &chain, false);
                check(&plain, &skip, p == 3);
                if plain.is_training() {
                    check(&recomputing(&plain), &skip, false);
                }
            }
        }
    });
}

#[test]
fn slots_have_the_same_numbers_in_every_process() {
    for kind in ScheduleKind::ALL {
        let schedule = chunked(kind, 4, 5);
        let topology = with_skip(schedule.schedule().stages());
        let whole = Program::new(schedule.clone(), &topology).unwrap();
        let mut numbers = std::collections::BTreeSet::new();
        for device in (0..4).map(DeviceId) {
            let own = Program::part(schedule.clone(), &topology, |other| other == device);
            let own = own.unwrap();
            let arrivals = |program: &Program| program.arrivals(device).collect::<Vec<_>>();
            assert!(!schedule.is_training() || !arrivals(&own).is_empty());
            assert_eq!(arrivals(&own), arrivals(&whole));
            let other = DeviceId((device.index() + 1) % 4);
            assert_eq!(own.arrivals(other).count(), 0);
            // The values sent by the others are those that arrive; each has a unique number.
            let devices = (0..4).map(DeviceId);
            let mut sent: Vec<_> = devices.flat_map(|other| own.sends(other)).collect();
            sent.sort_by_key(|address| address.slot);
            let to: Vec<_> = arrivals(&own).into_iter().map(|(to, _)| to).collect();
            assert_eq!(sent, to);
            for address in to {
                assert!(numbers.insert(own.number(address)));
                assert_eq!(own.number(address), whole.number(address));
            }
        }
        assert_eq!(whole.arrivals(DeviceId(9)).count(), 0);
    }
}

/// Checks that the failing rank has its own error, and the others one with the same text.
fn check_failed(results: Results, failed: usize, text: &str) {
    for (rank, result) in results.into_iter().enumerate() {
        match result.unwrap_err() {
            EngineError::Stage(error) => {
                assert_eq!((rank, &*error.to_string()), (failed, text));
            }
            EngineError::Elsewhere { rank: named, why } => {
                assert_ne!(rank, failed);
                assert_eq!((named, &*why), (failed, text));
            }
            other => panic!("rank {rank}: {other}"),
        }
    }
}

fn failing(stage: StageId, when: When, how: How) -> Settings {
    Settings {
        faults: vec![Fault { stage, when, how }],
        ..Settings::default()
    }
}

#[test]
fn a_fault_in_any_action_is_named_in_every_process_and_undone_in_all() {
    for kind in [ScheduleKind::OneFOneB, ScheduleKind::Zbv] {
        let schedule = recomputing(&chunked(kind, 3, 3));
        for split in splits(3) {
            let actions: Vec<_> = schedule
                .schedule()
                .iter()
                .flat_map(|(_, list)| list.to_vec())
                .collect();
            in_world(schedule.clone(), &split, move |mut world| {
                for action in actions {
                    let (stage, when) = (action.stage, When::Action(action.kind, action.micro));
                    let results = world.step(7, |_| failing(stage, when, How::Error));
                    let text = format!(
                        "stage {stage}, layer `affine.{stage}`, micro-batch {}, {}: made to fail",
                        action.micro,
                        Phase::Action(action.kind)
                    );
                    check_failed(results, world.rank_of(stage), &text);
                    world.good_step(5);
                }
                for stage in (0..schedule_stages(&world)).map(StageId) {
                    for when in [When::Begin, When::End] {
                        let results = world.step(7, |_| failing(stage, when, How::Panic));
                        assert!(results.iter().all(Result::is_err));
                        world.good_step(6);
                    }
                }
            });
        }
    }
}

fn schedule_stages(world: &World) -> usize {
    world.ranks[0].program.topology().stages()
}

#[test]
fn of_several_failures_every_process_says_its_own_or_the_lowest() {
    in_world(
        chunked(ScheduleKind::GPipe, 3, 2),
        &[0, 1, 2],
        |mut world| {
            let results = world.step(7, |rank| match rank {
                0 => Settings::default(),
                _ => failing(StageId(rank), When::Begin, How::Error),
            });
            let errors: Vec<_> = results.into_iter().map(Result::unwrap_err).collect();
            // One rank may have been told of the other's failure before it began, but not both.
            let failed = |error: &EngineError| error.stage_error().is_some();
            let lowest = errors.iter().position(failed).unwrap();
            let why = |rank| {
                format!("stage {rank}, layer `affine.{rank}`, begin of the step: made to fail")
            };
            for (rank, error) in errors.iter().enumerate() {
                let expected = if failed(error) {
                    why(rank)
                } else {
                    format!("rank {lowest}: {}", why(lowest))
                };
                assert_eq!(error.to_string(), expected);
            }
            assert!(lowest > 0);
            world.good_step(5);
        },
    );
}

#[test]
fn a_step_that_cannot_begin_in_one_process_begins_in_none() {
    in_world(
        chunked(ScheduleKind::OneFOneB, 2, 2),
        &[0, 1],
        |mut world| {
            // Rank 0 leaves out the caller's values.
            let results = together(
                &mut world.ranks,
                |_,
                 Rank {
                     engine, program, ..
                 }| {
                    engine.step(program, Arc::new(Settings::default()), Vec::new())
                },
            );
            let words: Vec<_> = results
                .into_iter()
                .map(|result| result.unwrap_err().to_string())
                .collect();
            assert_eq!(words[0], "no value for edge 0, micro-batch 0");
            assert_eq!(words[1], "rank 0: no value for edge 0, micro-batch 0");
            world.good_step(5);
        },
    );
}

#[test]
fn a_vote_brings_what_all_ranks_tell() {
    in_world(
        chunked(ScheduleKind::OneFOneB, 3, 2),
        &[0, 1, 2],
        |mut world| {
            for silent in [None, Some(1), None] {
                let results = together(&mut world.ranks, |number, rank| {
                    let mut values = entries(&rank.program, 5);
                    values.retain(|_| number == 0);
                    let ran = rank.engine.run(&rank.program, Arc::default(), values);
                    let mut ran = ran.unwrap();
                    assert!(ran.outcome().is_some());
                    let told = match silent {
                        Some(rank) if rank == number => Err(anyhow::anyhow!("no words")),
                        _ => Ok(vec![number as u8; number]),
                    };
                    let settled = rank.engine.settle(ran, told);
                    settled.map(|settled| settled.told)
                });
                for (rank, result) in results.into_iter().enumerate() {
                    match result {
                        Ok(told) => assert_eq!(told, [vec![], vec![1], vec![2, 2]]),
                        Err(EngineError::Untold(why)) => {
                            assert_eq!((rank, &*why.to_string()), (1, "no words"));
                        }
                        Err(other) => assert_eq!(other.to_string(), "rank 1: no words"),
                    }
                }
                if silent.is_none() {
                    world.counts(5);
                }
            }
            world.good_step(5);
        },
    );
}

/// Otherwise no process would know whether the step counts.
#[test]
fn an_engine_does_nothing_before_its_step_is_settled() {
    watched(|| {
        let topology = Arc::new(Topology::chain(1));
        let program = Program::new(chunked(ScheduleKind::GPipe, 1, 2), &topology).unwrap();
        let program = Arc::new(program);
        let mut engine = Engine::new(vec![builder(vec![StageId(0)], &topology)]).unwrap();
        let values = entries(&program, 5);
        let ran = engine.run(&program, Arc::default(), values).unwrap();
        let refused = engine.on_each(|_, _| Ok(())).unwrap_err();
        assert!(matches!(refused, EngineError::Broken), "{refused}");
        let settled = engine.settle(ran, Ok(b"alone".to_vec())).unwrap();
        assert_eq!(settled.told, [b"alone".to_vec()]);
        engine.on_each(|_, _| Ok(())).unwrap();
    });
}

#[test]
fn values_of_edges_that_end_elsewhere_are_not_wanted() {
    in_world(
        chunked(ScheduleKind::OneFOneB, 2, 2),
        &[0, 1],
        |mut world| {
            let whole = chunked(ScheduleKind::OneFOneB, 2, 2);
            let whole = Program::new(whole, &Topology::chain(2)).unwrap();
            let results = together(
                &mut world.ranks,
                |_,
                 Rank {
                     engine, program, ..
                 }| {
                    engine.step(program, Arc::new(Settings::default()), entries(&whole, 5))
                },
            );
            let words = results[1].as_ref().unwrap_err().to_string();
            assert!(words.contains("nothing takes one there"), "{words}");
            world.good_step(5);
        },
    );
}

#[test]
fn stages_that_cannot_be_built_are_named_in_every_process() {
    watched(|| {
        let carriers = InMemory::<i64>::new(&[0, 1]).unwrap();
        let topology = Arc::new(Topology::chain(2));
        let built = together(carriers, |rank, carrier| {
            let build = match rank {
                0 => builder(vec![StageId(0)], &topology),
                _ => Box::new(|| anyhow::bail!("no room")),
            };
            let engine = Engine::part(2, vec![(DeviceId(rank), build)], None, Arc::new(carrier));
            engine.map(drop).unwrap_err().to_string()
        });
        let why = "building the stages of device 1: no room";
        assert_eq!(built, [format!("rank 1: {why}"), why.to_owned()]);
    });
}

fn lost(result: &Result<impl Sized, EngineError>) -> &Lost {
    match result {
        Err(EngineError::Lost(lost)) => lost,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it went well"),
    }
}

#[test]
fn a_rank_that_is_lost_ends_the_others() {
    in_world(
        chunked(ScheduleKind::OneFOneB, 3, 4),
        &[0, 1, 2],
        |mut world| {
            world.good_step(5);
            let gone = world.ranks.remove(1);
            gone.carrier.lose("somebody pulled the plug");
            drop(gone);
            let results = world.step(7, |_| Settings::default());
            for result in &results {
                let expected = "rank 1 is lost: somebody pulled the plug";
                assert_eq!(lost(result).to_string(), expected);
            }
            // They return the same errors again.
            assert!(matches!(
                world.step(7, |_| Settings::default())[0],
                Err(EngineError::Broken)
            ));
        },
    );
}

#[test]
fn a_rank_that_is_lost_amid_a_step_ends_the_others() {
    in_world(
        chunked(ScheduleKind::OneFOneB, 3, 4),
        &[0, 1, 2],
        |mut world| {
            let (gate, blocked) = (Gate::default(), Gate::default());
            let carrier = Arc::clone(&world.ranks[0].carrier);
            let stage = StageId(0);
            let when = When::Action(gpipe_partitioner::ActionKind::Forward, MicroId(1));
            let (there, door) = (blocked.clone(), gate.clone());
            let puller = std::thread::spawn(move || {
                there.pass();
                carrier.lose("its cable was pulled");
                door.open();
            });
            let results = world.step(7, |_| Settings {
                gate: gate.clone(),
                blocked: blocked.clone(),
                ..failing(stage, when, How::Blocks)
            });
            puller.join().unwrap();
            for result in &results {
                assert_eq!(lost(result).rank, 0);
            }
        },
    );
}

#[test]
fn a_stage_that_does_not_come_back_ends_all_processes() {
    in_world(
        chunked(ScheduleKind::OneFOneB, 2, 2),
        &[0, 1],
        |mut world| {
            let gate = Gate::default();
            world.ranks[1]
                .engine
                .set_patience(Some(Duration::from_millis(20)));
            let when = When::Action(gpipe_partitioner::ActionKind::Forward, MicroId(1));
            let results = world.step(7, |_| Settings {
                gate: gate.clone(),
                ..failing(StageId(1), when, How::Blocks)
            });
            let own = results[1].as_ref().unwrap_err();
            assert!(matches!(own, EngineError::Stalled(_)), "{own}");
            assert_eq!(
                lost(&results[0]).to_string(),
                format!("rank 1 is lost: {own}")
            );
            gate.open();
        },
    );
}

/// Keeps the door, and refuses to send.
#[derive(Default)]
struct Refusing {
    door: Mutex<Option<Arc<dyn Door<i64>>>>,
}

impl Carrier<i64> for Refusing {
    fn begin(&self, _: &Arc<Program>, door: Arc<dyn Door<i64>>) -> Result<(), Lost> {
        *self.door.lock() = Some(door);
        Ok(())
    }

    fn send(&self, to: Address, value: i64) -> anyhow::Result<()> {
        // The door accepts only values that the program expects.
        let door = self.door.lock().clone().unwrap();
        for (device, slot) in [(0, 1000), (0, 0), (1, 0), (7, 0)] {
            let device = DeviceId(device);
            door.deliver(Address { device, slot }, 1).unwrap_err();
        }
        anyhow::bail!(
            "no way for {value} to slot {} of device {}",
            to.slot,
            to.device
        )
    }

    fn stop(&self, _: &str) {}

    fn vote(&self, ballot: Ballot) -> Result<Verdict, Lost> {
        Ok(Verdict::of(&[ballot]))
    }

    fn renew(&self) -> Result<(), Lost> {
        *self.door.lock() = None;
        Ok(())
    }

    fn lose(&self, _: &str) {}
}

#[test]
fn what_cannot_be_sent_is_an_error_of_its_action_and_what_nobody_wants_does_not_arrive() {
    watched(|| {
        let topology = Arc::new(Topology::chain(2));
        let schedule = chunked(ScheduleKind::GPipe, 2, 2);
        let build = (DeviceId(0), builder(vec![StageId(0)], &topology));
        let mut engine = Engine::part(2, vec![build], None, Arc::new(Refusing::default())).unwrap();
        let program = Program::part(schedule, &topology, |device| device == DeviceId(0)).unwrap();
        let program = Arc::new(program);
        for _ in 0..2 {
            let result = engine.step(&program, Arc::default(), entries(&program, 5));
            let error = result.unwrap_err();
            let error = error.stage_error().unwrap();
            assert_eq!((error.stage, error.micro), (StageId(0), Some(MicroId(0))));
            let words = error.to_string();
            let expected = "stage 0, micro-batch 0, sending after forward: no way for 22 to slot 0 of device 1";
            assert_eq!(words, expected);
        }
    });
}
