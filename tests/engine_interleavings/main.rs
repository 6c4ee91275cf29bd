//! The engine's protocol under many thousands of interleavings of its threads.
//!
//! A model checker runs the engine's own source with its own locks and threads,
//! one thread at a time, and decides at every lock, wait and atomic access who
//! goes on. It finds deadlocks and lost wake-ups by itself (all threads asleep);
//! what is asserted on top are results, and that no value outlives its step.
//!
//! A depth-first search goes through the first interleavings of the smallest case
//! in order; random and priority-based (PCT) walks sample those of the larger ones.
#![allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_wrap,
    clippy::print_stdout
)]

mod engine;

use anyhow::bail;
use engine::{EdgeId, Engine, EngineError, Entry, Program, Stage, StageBuilder, Topology};
use gpipe_partitioner::{Action, CheckedSchedule, Kind, MicroId, ScheduleKind, Shape, StageId};
use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number that counts how many of its kind are alive.
struct Value(i64, Arc<AtomicUsize>);

impl Value {
    fn new(number: i64, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self(number, Arc::clone(alive))
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Begin(usize),
    Run(Action),
    End(usize),
}

#[derive(Default)]
struct Settings {
    faults: Vec<At>,
    panics: bool,
}

/// Adds its number plus one on the way forward and doubles on the way back.
struct Adder {
    id: StageId,
    settings: Arc<Settings>,
    alive: Arc<AtomicUsize>,
    held: Vec<MicroId>,
    backwards: usize,
    before: usize,
}

impl Adder {
    fn trip(&self, now: At) -> anyhow::Result<()> {
        if self.settings.faults.contains(&now) {
            if self.settings.panics {
                std::panic::resume_unwind(Box::new("made to panic"));
            }
            bail!("made to fail");
        }
        Ok(())
    }
}

impl Stage for Adder {
    type Value = Value;
    type Step = Settings;

    fn begin(&mut self, step: &Arc<Settings>) -> anyhow::Result<()> {
        assert!(self.held.is_empty());
        self.settings = Arc::clone(step);
        self.before = self.backwards;
        self.trip(At::Begin(self.id.index()))
    }

    fn run(&mut self, action: Action, inputs: Vec<Value>) -> anyhow::Result<Vec<Value>> {
        self.trip(At::Run(action))?;
        let first = inputs.first().map_or(1, |value| value.0);
        if action.kind == Kind::Forward {
            self.held.push(action.micro);
            Ok(vec![Value::new(
                first + self.id.index() as i64 + 1,
                &self.alive,
            )])
        } else {
            self.held.retain(|micro| *micro != action.micro);
            self.backwards += 1;
            Ok(vec![Value::new(2 * first, &self.alive)])
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.trip(At::End(self.id.index()))
    }

    fn abort(&mut self) {
        self.held.clear();
        self.backwards = self.before;
    }
}

struct Rig {
    engine: Engine<Adder>,
    program: Arc<Program>,
    alive: Arc<AtomicUsize>,
    stages: usize,
    micros: usize,
}

fn schedule(kind: ScheduleKind, stages: usize, micros: usize) -> CheckedSchedule {
    let shape = Shape {
        devices: stages,
        chunks: 1,
        micro_batches: micros,
    };
    kind.generate(shape).unwrap()
}

fn builder(stage: usize, alive: &Arc<AtomicUsize>) -> StageBuilder<Adder> {
    let (id, alive) = (StageId(stage), Arc::clone(alive));
    Box::new(move || {
        let settings = Arc::default();
        let (held, backwards, before) = (Vec::new(), 0, 0);
        Ok(vec![(
            id,
            Adder {
                id,
                settings,
                alive,
                held,
                backwards,
                before,
            },
        )])
    })
}

impl Rig {
    fn new(kind: ScheduleKind, stages: usize, micros: usize) -> Self {
        let alive = Arc::default();
        let engine = Engine::new((0..stages).map(|s| builder(s, &alive)).collect()).unwrap();
        let schedule = schedule(kind, stages, micros);
        let program = Arc::new(Program::new(schedule, &Topology::chain(stages)).unwrap());
        Self {
            engine,
            program,
            alive,
            stages,
            micros,
        }
    }

    fn step(&mut self, faults: Vec<At>, panics: bool) -> Result<(), EngineError> {
        let entry = |micro| Entry {
            edge: EdgeId(0),
            micro: MicroId(micro),
            value: Value::new(10 * micro as i64, &self.alive),
        };
        let entries = (0..self.micros).map(entry).collect();
        let settings = Arc::new(Settings { faults, panics });
        let result = self
            .engine
            .step(&self.program, settings, entries)
            .map(|outcome| {
                let sum: i64 = (1..=self.stages as i64).sum();
                for ((edge, micro), value) in &outcome.exits {
                    assert_eq!(edge.index(), self.stages);
                    assert_eq!(value.0, 10 * micro.index() as i64 + sum);
                }
                assert_eq!(outcome.exits.len(), self.micros);
                for value in outcome.gradients.values() {
                    assert_eq!(value.0, 1 << self.stages);
                }
                assert_eq!(outcome.gradients.len(), self.micros);
            });
        assert_eq!(
            self.alive.load(Ordering::SeqCst),
            0,
            "values outlive the step"
        );
        result
    }

    fn good_step(&mut self) {
        self.step(Vec::new(), false).unwrap();
    }

    fn check_backwards(&mut self, steps: usize) {
        let done = self.engine.on_each(|_, stage| Ok(stage.backwards)).unwrap();
        assert_eq!(done, vec![steps * self.micros; self.stages]);
    }
}

fn run(stage: usize, kind: Kind, micro: usize) -> At {
    At::Run(Action {
        stage: StageId(stage),
        kind,
        micro: MicroId(micro),
    })
}

/// Runs `scenario` under `scheduler` and says how many interleavings that were.
fn explore(name: &str, scheduler: impl Scheduler + 'static, scenario: fn()) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    // The only relaxed accesses are to a hint that carries no data.
    config.silence_warnings = true;
    let explored = Runner::new(scheduler, config).run(scenario);
    println!("{name}: {explored} interleavings explored");
}

/// Walks per scheduler and case; `INTERLEAVINGS=20000 cargo test …` takes longer.
fn walks() -> usize {
    std::env::var("INTERLEAVINGS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(400)
}

fn sample(name: &str, scenario: fn()) {
    explore(
        &format!("{name}, random"),
        RandomScheduler::new_from_seed(7, walks()),
        scenario,
    );
    explore(
        &format!("{name}, PCT"),
        PctScheduler::new_from_seed(7, 3, walks()),
        scenario,
    );
}

#[test]
fn two_good_steps() {
    sample("two good steps", || {
        let mut rig = Rig::new(ScheduleKind::OneFOneB, 3, 3);
        rig.good_step();
        rig.good_step();
        rig.check_backwards(2);
    });
}

#[test]
fn the_smallest_failure_depth_first() {
    explore(
        "smallest failure, depth first",
        DfsScheduler::new(Some(4 * walks()), false),
        || {
            let mut rig = Rig::new(ScheduleKind::GPipe, 2, 1);
            rig.step(vec![run(1, Kind::Forward, 0)], false).unwrap_err();
            rig.good_step();
        },
    );
}

#[test]
fn a_failing_step_between_good_ones() {
    sample("a failing step", || {
        let mut rig = Rig::new(ScheduleKind::OneFOneB, 3, 3);
        rig.good_step();
        let error = rig.step(vec![run(1, Kind::Backward, 1)], true).unwrap_err();
        assert_eq!(error.stage_error().unwrap().stage, StageId(1));
        rig.good_step();
        rig.check_backwards(2);
    });
}

#[test]
fn several_stages_fail_at_once() {
    sample("several failures", || {
        let mut rig = Rig::new(ScheduleKind::GPipe, 3, 2);
        let faults = vec![
            At::Begin(2),
            run(0, Kind::Forward, 1),
            run(1, Kind::Forward, 0),
        ];
        rig.step(faults, false).unwrap_err();
        rig.step(vec![At::End(2), run(1, Kind::Backward, 1)], true)
            .unwrap_err();
        rig.step(vec![At::End(0)], false).unwrap_err();
        rig.good_step();
        rig.check_backwards(1);
    });
}

#[test]
fn the_end_of_an_engine_after_a_failure_or_before_anything() {
    sample("the end", || {
        drop(Rig::new(ScheduleKind::GPipe, 3, 1));
        let mut rig = Rig::new(ScheduleKind::GPipe, 3, 2);
        rig.step(vec![run(2, Kind::Forward, 0)], false).unwrap_err();
        drop(rig);
        let alive = Arc::default();
        let mut builders: Vec<_> = (0..3).map(|stage| builder(stage, &alive)).collect();
        builders[1] = Box::new(|| bail!("no room"));
        Engine::new(builders).unwrap_err();
    });
}
