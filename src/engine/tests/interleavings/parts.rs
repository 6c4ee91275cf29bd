//! Several engines, each with a part of the devices, under many interleavings of their threads and
//! of the threads that carry values between them.

use super::adder::{Adder, At, Settings, Value, copies};
use super::engine::{
    Carrier, EdgeId, Engine, EngineError, Entry, InMemory, Mesh, Program, Settled, Sharing,
    Topology, Unpinned,
};
use super::explore::{depth_first, sample, sample_each};
use super::{recomputing, run, schedule, vee};
use gpipe_partitioner::{Action, CheckedSchedule, DeviceId, MicroId, ScheduleKind, StageId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An engine per rank; each call is made by all of them, each on its own thread.
pub struct World {
    pub ranks: Vec<Rank>,
    alive: Arc<AtomicUsize>,
    micros: usize,
    stages: usize,
}

pub struct Rank {
    engine: Engine<Adder>,
    program: Arc<Program>,
    pub carrier: Arc<InMemory<Value>>,
    /// Micro-batches of the replicas whose first stage this rank has.
    first: Vec<usize>,
}

impl World {
    pub fn new(schedule: &CheckedSchedule, rank_of: &[usize], turns: bool) -> Self {
        Self::replicated(&[Some(schedule.clone())], rank_of, turns)
    }

    /// A world with one replica for each of these schedules.
    pub fn replicated(
        replicas: &[Option<CheckedSchedule>],
        rank_of: &[usize],
        turns: bool,
    ) -> Self {
        let all = || replicas.iter().flatten().map(CheckedSchedule::schedule);
        let stages = all().next().unwrap().stages();
        let micros = all().map(gpipe_partitioner::Schedule::micro_batches).sum();
        let alive: Arc<AtomicUsize> = Arc::default();
        let carriers = InMemory::new(rank_of).unwrap().into_iter().enumerate();
        let threads: Vec<_> = carriers
            .map(|(rank, carrier)| {
                let (replicas, rank_of) = (replicas.to_vec(), rank_of.to_vec());
                let alive = Arc::clone(&alive);
                shuttle::thread::spawn(move || {
                    Rank::new(&replicas, &rank_of, rank, (carrier, turns), &alive)
                })
            })
            .collect();
        let ranks = threads.into_iter().map(|thread| thread.join().unwrap());
        Self {
            ranks: ranks.collect(),
            alive,
            micros,
            stages,
        }
    }

    /// Runs a step and returns its result on each rank. No value outlives the step.
    pub fn step(&mut self, faults: &[At]) -> Vec<Result<(), EngineError>> {
        self.step_untold(faults, &[])
    }

    /// Same as `step`, where the ranks `untold` cannot report the result of the step.
    pub fn step_untold(&mut self, faults: &[At], untold: &[usize]) -> Vec<Result<(), EngineError>> {
        let count = self.ranks.len();
        let ranks = std::mem::take(&mut self.ranks).into_iter();
        let threads: Vec<_> = ranks
            .enumerate()
            .map(|(number, mut rank)| {
                let (alive, faults) = (Arc::clone(&self.alive), faults.to_vec());
                let stages = self.stages;
                let told = (number, count, untold.contains(&number));
                shuttle::thread::spawn(move || {
                    let result = rank.step(faults, stages, told, &alive);
                    (rank, result)
                })
            })
            .collect();
        let done = threads.into_iter().map(|thread| thread.join().unwrap());
        let (ranks, results): (Vec<_>, Vec<_>) = done.unzip();
        self.ranks = ranks;
        let is_lost = |result: &Result<(), EngineError>| {
            matches!(result, Err(EngineError::Lost(_) | EngineError::Broken))
        };
        if !results.iter().any(is_lost) {
            let alive = self.alive.load(Ordering::SeqCst);
            assert_eq!(alive, 0, "values outlive the step");
        }
        results
    }

    pub fn good_step(&mut self) {
        self.step(&[])
            .into_iter()
            .for_each(|result| result.unwrap());
    }

    /// Runs a step that counts nowhere; the failing rank returns its error, the others its text.
    pub fn bad_step(&mut self, faults: &[At]) {
        let errors = self.step(faults).into_iter().map(Result::unwrap_err);
        let errors: Vec<_> = errors.collect();
        let own = |error: &EngineError| error.stage_error().is_some();
        let lowest = errors.iter().position(own).unwrap();
        for error in &errors {
            if let EngineError::Elsewhere { rank, why } = error {
                assert_eq!((*rank, why), (lowest, &errors[lowest].to_string()));
            } else {
                assert!(own(error), "{error}");
            }
        }
    }

    /// Checks that every stage has completed `steps` whole steps, and nothing else.
    pub fn check_done(&mut self, steps: usize) {
        for rank in &mut self.ranks {
            let done = rank.engine.on_each(|_, stage| Ok(stage.done)).unwrap();
            assert!(
                done.iter().all(|done| *done == steps * self.micros),
                "{done:?}"
            );
        }
    }
}

impl Rank {
    fn new(
        replicas: &[Option<CheckedSchedule>],
        rank_of: &[usize],
        rank: usize,
        (carrier, turns): (InMemory<Value>, bool),
        alive: &Arc<AtomicUsize>,
    ) -> Self {
        let schedule = replicas.iter().flatten().next().unwrap();
        let stages = schedule.schedule().stages();
        let mesh = Mesh::new(schedule.schedule().devices(), replicas.len());
        let own = (0..rank_of.len()).filter(|device| rank_of[*device] == rank);
        let own: Vec<DeviceId> = own.map(DeviceId).collect();
        let builders = own.iter().map(|&device| {
            let here = schedule.stages_on(mesh.of_pipeline(device));
            let copy = (mesh.replica_of(device), mesh.replicas());
            (device, copies(here, copy, stages, alive))
        });
        let sharing = Sharing {
            devices: own.clone(),
            max_concurrent: 1,
            affinity: Arc::new(Unpinned),
        };
        let carrier = Arc::new(carrier);
        let door = Arc::clone(&carrier) as Arc<dyn Carrier<Value>>;
        let sharing = turns.then_some(&sharing);
        let engine = Engine::part(mesh, builders.collect(), sharing, door).unwrap();
        let topology = Topology::chain(stages);
        let here = |device| own.contains(&device);
        let program = Program::replicated(replicas.to_vec(), &topology, 2, here).unwrap();
        let first = schedule.device_of(StageId(0));
        let fed = (0..mesh.replicas()).filter(|replica| here(mesh.device(first, *replica)));
        Self {
            first: fed.flat_map(|own| program.micro_batches_of(own)).collect(),
            engine,
            program: Arc::new(program),
            carrier,
        }
    }

    fn step(
        &mut self,
        faults: Vec<At>,
        stages: usize,
        (number, count, untold): (usize, usize, bool),
        alive: &Arc<AtomicUsize>,
    ) -> Result<(), EngineError> {
        let entry = |micro| Entry {
            edge: EdgeId(0),
            micro: MicroId(micro),
            value: Value::new(10 * micro as i64, alive),
        };
        let entries = self.first.iter().copied().map(entry).collect();
        let settings = Settings {
            faults,
            ..Settings::default()
        };
        let ran = self
            .engine
            .run(&self.program, Arc::new(settings), entries)?;
        let told = if untold {
            Err(anyhow::anyhow!("no words"))
        } else {
            Ok(vec![number as u8])
        };
        let Settled { outcome, told } = self.engine.settle(ran, told)?;
        let all: Vec<Vec<u8>> = (0..count).map(|rank| vec![rank as u8]).collect();
        assert_eq!(told, all, "what the ranks tell");
        let sum: i64 = (1..=stages as i64).sum();
        for ((_, micro), value) in &outcome.exits {
            assert_eq!(value.0, 10 * micro.index() as i64 + sum);
        }
        for value in outcome.gradients.values() {
            assert_eq!(value.0, 1 << stages);
        }
        Ok(())
    }
}

#[test]
fn good_steps_of_two_and_three_engines() {
    let one = schedule(ScheduleKind::OneFOneB, 3, 2);
    for split in [[0, 1, 2], [0, 0, 1], [0, 1, 0]] {
        let one = one.clone();
        sample(&format!("good steps over {split:?}"), move || {
            let mut world = World::new(&one, &split, false);
            world.good_step();
            world.good_step();
            world.check_done(2);
        });
    }
    let two = vee(2);
    sample("good steps of a V over two engines", move || {
        let mut world = World::new(&two, &[0, 1], false);
        world.good_step();
        world.good_step();
        world.check_done(2);
    });
    let three = schedule(ScheduleKind::OneFOneB, 4, 2);
    sample(
        "good steps of engines whose devices take turns",
        move || {
            let mut world = World::new(&three, &[0, 1, 0, 1], true);
            world.good_step();
            world.good_step();
            world.check_done(2);
        },
    );
}

#[test]
fn failures_of_two_and_three_engines() {
    let gpipe = schedule(ScheduleKind::GPipe, 2, 1);
    depth_first("the smallest failure of two engines", move || {
        let mut world = World::new(&gpipe, &[0, 1], false);
        world.bad_step(&[run("1F0")]);
        world.good_step();
        world.check_done(1);
    });
    for (kind, split) in [
        (ScheduleKind::OneFOneB, vec![0, 1, 2]),
        (ScheduleKind::OneFOneB, vec![0, 1, 0]),
        (ScheduleKind::Zbv, vec![0, 1]),
    ] {
        let schedule = match kind {
            ScheduleKind::Zbv => recomputing(kind, 2),
            _ => schedule(kind, 3, 2),
        };
        let all = schedule.schedule().iter().flat_map(|(_, list)| list);
        let actions: Vec<Action> = all.copied().collect();
        let name = format!("a failure in each action of {kind} over {split:?}");
        sample_each(&name, &actions, move |action| {
            let mut world = World::new(&schedule, &split, false);
            world.bad_step(&[At::Run(action)]);
            world.good_step();
            world.check_done(1);
        });
    }
}

#[test]
fn several_engines_fail_at_once() {
    let schedule = schedule(ScheduleKind::GPipe, 3, 2);
    sample("several failures of several engines", move || {
        let mut world = World::new(&schedule, &[0, 1, 2], false);
        world.bad_step(&[At::Begin(2), run("0F1"), run("1F0")]);
        world.good_step();
        world.bad_step(&[At::End(2), At::End(1), run("0B1")]);
        world.good_step();
        world.check_done(2);
    });
}

/// A step that completed everywhere counts nowhere if one rank cannot report its result.
#[test]
fn a_rank_cannot_tell() {
    let schedule = schedule(ScheduleKind::OneFOneB, 3, 2);
    sample("a rank that cannot tell what a step came to", move || {
        let mut world = World::new(&schedule, &[0, 1, 2], false);
        for (rank, result) in world.step_untold(&[], &[1]).into_iter().enumerate() {
            match result {
                Err(EngineError::Untold(why)) => {
                    assert_eq!((rank, &*why.to_string()), (1, "no words"));
                }
                Err(EngineError::Elsewhere { rank: named, why }) => {
                    assert_ne!(rank, 1);
                    assert_eq!((named, &*why), (1, "no words"));
                }
                other => panic!("{other:?}"),
            }
        }
        world.good_step();
        world.check_done(1);
    });
}

/// A rank is lost at any moment: all others are told, sooner or later, and end.
#[test]
fn a_rank_is_lost() {
    let schedule = schedule(ScheduleKind::OneFOneB, 3, 2);
    sample("a lost rank", move || {
        let mut world = World::new(&schedule, &[0, 1, 2], false);
        let carrier = Arc::clone(&world.ranks[1].carrier);
        let loses = shuttle::thread::spawn(move || carrier.lose("gone"));
        let mut results = world.step(&[run("2B0")]);
        loses.join().unwrap();
        results.extend(world.step(&[]));
        for result in results {
            match result {
                Err(EngineError::Lost(lost)) => assert_eq!(lost.rank, 1),
                // The rank failed before, or is told again.
                Err(
                    EngineError::Stage(_) | EngineError::Elsewhere { .. } | EngineError::Broken,
                ) => {}
                other => panic!("{other:?}"),
            }
        }
        drop(world);
    });
}
