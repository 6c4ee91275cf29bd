//! A stage that tracks its micro-batches, and an engine of such stages.

use crate::engine::{
    EdgeId, Engine, EngineError, Entry, Program, Sharing, Stage, StageBuilder, Topology, Unpinned,
};
use anyhow::{bail, ensure};
use gpipe_partitioner::{Action, ActionKind, CheckedSchedule, DeviceId, MicroId, StageId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A number that counts the live values of its kind.
pub struct Value(pub i64, Arc<AtomicUsize>);

impl Value {
    pub fn new(number: i64, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self(number, Arc::clone(alive))
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Place where a stage fails.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum At {
    Begin(usize),
    Run(Action),
    /// This round of the exchange of a copy of a stage: stage, replica, round.
    Exchange(usize, usize, usize),
    End(usize),
}

#[derive(Default)]
pub struct Settings {
    pub faults: Vec<At>,
    pub panics: bool,
    /// Stages yield in the middle of their work, so that others can see them at it.
    pub lingers: bool,
}

/// Adds its number plus one on the way forward and doubles on the way back.
pub struct Adder {
    id: StageId,
    /// This copy's index, and the number of copies.
    copy: (usize, usize),
    /// The last stage, whose backward takes nothing.
    last: bool,
    settings: Arc<Settings>,
    alive: Arc<AtomicUsize>,
    /// Micro-batches between F and B or I.
    held: Vec<MicroId>,
    /// Micro-batches between I and W.
    deferred: Vec<MicroId>,
    /// Micro-batches between R and B or I.
    recomputed: Vec<MicroId>,
    /// Micro-batches whose B or W is done, in all good steps.
    pub done: usize,
    before: usize,
    /// Number of rounds of an exchange that are over.
    rounds: usize,
}

/// Takes `micro` out of `list`; an error if it is not there.
fn take(list: &mut Vec<MicroId>, micro: MicroId) -> anyhow::Result<()> {
    ensure!(list.contains(&micro), "micro-batch {micro} is not there");
    list.retain(|other| *other != micro);
    Ok(())
}

impl Adder {
    fn new(id: StageId, copy: (usize, usize), last: bool, alive: Arc<AtomicUsize>) -> Self {
        Self {
            id,
            copy,
            last,
            alive,
            settings: Arc::default(),
            held: Vec::new(),
            deferred: Vec::new(),
            recomputed: Vec::new(),
            done: 0,
            before: 0,
            rounds: 0,
        }
    }

    fn trip(&self, now: At) -> anyhow::Result<()> {
        if self.settings.lingers {
            shuttle::thread::yield_now();
        }
        if self.settings.faults.contains(&now) {
            if self.settings.panics {
                std::panic::resume_unwind(Box::new("made to panic"));
            }
            bail!("made to fail");
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.deferred.is_empty() && self.recomputed.is_empty()
    }

    /// Returns the output of the action, if any.
    fn act(&mut self, action: Action, first: i64) -> anyhow::Result<Option<i64>> {
        let micro = action.micro;
        match action.kind {
            ActionKind::Forward => {
                self.held.push(micro);
                return Ok(Some(first + self.id.index() as i64 + 1));
            }
            ActionKind::Recompute => {
                ensure!(self.held.contains(&micro), "nothing to recompute");
                self.recomputed.push(micro);
                return Ok(None);
            }
            ActionKind::BackwardWeight => {
                take(&mut self.deferred, micro)?;
                self.done += 1;
                return Ok(None);
            }
            ActionKind::Backward => self.done += 1,
            ActionKind::BackwardInput => self.deferred.push(micro),
        }
        take(&mut self.held, micro)?;
        self.recomputed.retain(|other| *other != micro);
        Ok(Some(2 * first))
    }
}

/// Encodes a copy's message of a round with a number, such that no two are confused.
fn note(round: usize, stage: StageId, replica: usize, number: usize) -> i64 {
    (1000 * (100 * round + 10 * stage.index() + replica) + number) as i64
}

impl Stage for Adder {
    type Value = Value;
    type Step = Settings;

    fn begin(&mut self, step: &Arc<Settings>) -> anyhow::Result<()> {
        assert!(self.is_empty());
        self.settings = Arc::clone(step);
        self.before = self.done;
        self.rounds = 0;
        self.trip(At::Begin(self.id.index()))
    }

    fn run(&mut self, action: Action, inputs: Vec<Value>) -> anyhow::Result<Vec<Value>> {
        let takes = match action.kind {
            ActionKind::Forward => 1,
            kind => usize::from(kind.gives_input_gradient() && !self.last),
        };
        // Even where the step is about to be abandoned.
        ensure!(inputs.len() == takes, "{} values", inputs.len());
        self.trip(At::Run(action))?;
        let first = inputs.first().map_or(1, |value| value.0);
        let number = self.act(action, first)?;
        let value = number.map(|number| Value::new(number, &self.alive));
        Ok(value.into_iter().collect())
    }

    /// Tells all copies the number of completed micro-batches of each, and then again.
    fn exchange(&mut self, round: usize, from: Vec<Value>) -> anyhow::Result<Vec<Value>> {
        let (own, copies) = self.copy;
        ensure!(
            self.rounds == round && self.is_empty(),
            "too early, or too late"
        );
        self.rounds += 1;
        let others: Vec<usize> = (0..copies).filter(|other| *other != own).collect();
        ensure!(from.len() == if round == 0 { 0 } else { others.len() });
        self.trip(At::Exchange(self.id.index(), own, round))?;
        for (other, value) in others.iter().zip(&from) {
            let first = note(round - 1, self.id, *other, 0);
            let number = value.0 - first;
            ensure!((0..1000).contains(&number), "{} of another", value.0);
            if round == 1 {
                self.done += number as usize;
            } else {
                let all = (self.done - self.before) as i64;
                ensure!(number == all, "{number} where {all} are done");
            }
        }
        let number = note(round, self.id, own, self.done - self.before);
        let takers = if round == 2 { 0 } else { others.len() };
        Ok((0..takers)
            .map(|_| Value::new(number, &self.alive))
            .collect())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.trip(At::End(self.id.index()))?;
        ensure!(self.is_empty(), "something is left over");
        ensure!(
            self.copy.1 == 1 || self.rounds == 3,
            "the exchange is not over"
        );
        Ok(())
    }

    fn abort(&mut self) {
        self.held.clear();
        self.deferred.clear();
        self.recomputed.clear();
        self.done = self.before;
    }
}

/// Builds `stages` of a chain of `count`, all on one device.
pub fn builder(
    stages: Vec<StageId>,
    count: usize,
    alive: &Arc<AtomicUsize>,
) -> StageBuilder<Adder> {
    copies(stages, (0, 1), count, alive)
}

/// Same as `builder`, for one replica of several.
pub fn copies(
    stages: Vec<StageId>,
    copy: (usize, usize),
    count: usize,
    alive: &Arc<AtomicUsize>,
) -> StageBuilder<Adder> {
    let alive = Arc::clone(alive);
    let last = move |id: StageId| id.index() + 1 == count;
    let stage = move |id| (id, Adder::new(id, copy, last(id), Arc::clone(&alive)));
    Box::new(move || Ok(stages.into_iter().map(stage).collect()))
}

/// An engine with a program for it.
pub struct Rig {
    engine: Engine<Adder>,
    program: Arc<Program>,
    alive: Arc<AtomicUsize>,
    stages: usize,
    micros: usize,
    /// The caller has no patience: a stage seen at work counts as stalled.
    impatient: bool,
}

impl Rig {
    pub fn new(schedule: &CheckedSchedule) -> Self {
        Self::build(schedule, Engine::new)
    }

    /// Lets `max_concurrent` of the devices work at the same time.
    pub fn taking_turns(schedule: &CheckedSchedule, max_concurrent: usize) -> Self {
        let devices = schedule.schedule().devices();
        let sharing = Sharing {
            devices: (0..devices).map(DeviceId).collect(),
            max_concurrent,
            affinity: Arc::new(Unpinned),
        };
        Self::build(schedule, |builders| {
            Engine::taking_turns(builders, &sharing)
        })
    }

    fn build(
        schedule: &CheckedSchedule,
        engine: impl FnOnce(Vec<StageBuilder<Adder>>) -> Result<Engine<Adder>, EngineError>,
    ) -> Self {
        let plain = schedule.schedule();
        let (stages, micros) = (plain.stages(), plain.micro_batches());
        let alive = Arc::default();
        let devices = (0..plain.devices()).map(DeviceId);
        let builders = devices.map(|device| builder(schedule.stages_on(device), stages, &alive));
        let engine = engine(builders.collect()).unwrap();
        let program = Program::new(schedule.clone(), &Topology::chain(stages)).unwrap();
        Self {
            engine,
            program: Arc::new(program),
            alive,
            stages,
            micros,
            impatient: false,
        }
    }

    pub fn impatient(mut self, impatient: bool) -> Self {
        self.engine
            .set_patience(impatient.then_some(Duration::ZERO));
        self.impatient = impatient;
        self
    }

    /// Runs a step, which must give the right numbers if any, and must leave no value alive.
    pub fn step(&mut self, faults: Vec<At>, panics: bool) -> Result<(), EngineError> {
        let entry = |micro| Entry {
            edge: EdgeId(0),
            micro: MicroId(micro),
            value: Value::new(10 * micro as i64, &self.alive),
        };
        let entries = (0..self.micros).map(entry).collect();
        let settings = Arc::new(Settings {
            faults,
            panics,
            lingers: self.impatient,
        });
        let result = self.engine.step(&self.program, settings, entries);
        let result = result.map(|outcome| {
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
        if !matches!(result, Err(EngineError::Stalled(_))) {
            let alive = self.alive.load(Ordering::SeqCst);
            assert_eq!(alive, 0, "values outlive the step");
        }
        result
    }

    pub fn good_step(&mut self) {
        self.step(Vec::new(), false).unwrap();
    }

    /// Checks that every stage has completed `steps` whole steps, and nothing else.
    pub fn check_done(&mut self, steps: usize) {
        let done = self.engine.on_each(|_, stage| Ok(stage.done)).unwrap();
        assert_eq!(done, vec![steps * self.micros; self.stages]);
    }
}
