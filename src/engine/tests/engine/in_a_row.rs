//! Steps in a row without a barrier compute the same results as steps with one.

use crate::support::{Gate, watched};
use anyhow::{Context, bail, ensure};
use gpipe_engine::{
    EdgeId, EdgeValues, Engine, EngineError, Entry, Phase, Program, Sharing, Stage, StageBuilder,
    Topology, TopologyError, Unpinned,
};
use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, DeviceId, MicroId, ScheduleKind, Shape, StageId,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Place where a stage fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Run(usize, Action),
    Close(usize, StageId),
}

#[derive(Default)]
struct Settings {
    fault: Option<At>,
    panics: bool,
    /// The failing stage waits here instead, if there is a gate.
    gate: Option<Gate>,
}

/// Multiplies by a weight, which it learns; in wrapping integers, such that every order of
/// additions and updates gives a different weight.
struct Learner {
    id: StageId,
    weight: i64,
    before: i64,
    gradient: i64,
    held: HashMap<MicroId, i64>,
    deferred: HashMap<MicroId, i64>,
    settings: Arc<Settings>,
    step: usize,
}

impl Learner {
    fn new(id: StageId) -> Self {
        Self {
            id,
            weight: 3 + 2 * id.index() as i64,
            before: 0,
            gradient: 0,
            held: HashMap::new(),
            deferred: HashMap::new(),
            settings: Arc::default(),
            step: 0,
        }
    }

    fn trip(&self, now: At) -> anyhow::Result<()> {
        if self.settings.fault != Some(now) {
            return Ok(());
        }
        if let Some(gate) = &self.settings.gate {
            gate.pass();
            return Ok(());
        }
        if self.settings.panics {
            std::panic::resume_unwind(Box::new("made to panic"));
        }
        bail!("made to fail")
    }

    fn update(&mut self) {
        self.weight = self.weight.wrapping_mul(5).wrapping_sub(self.gradient);
        self.gradient = 0;
    }

    fn learn(&mut self, micro: MicroId, gradient: i64) -> anyhow::Result<()> {
        let x = self.held.remove(&micro).context("no forward before")?;
        // The result depends on the order.
        self.gradient = self.gradient.wrapping_mul(7);
        self.gradient = self.gradient.wrapping_add(gradient.wrapping_mul(x));
        Ok(())
    }
}

impl Stage for Learner {
    type Value = i64;
    type Step = Settings;

    fn begin(&mut self, step: &Arc<Settings>) -> anyhow::Result<()> {
        (self.settings, self.before, self.step) = (Arc::clone(step), self.weight, 0);
        Ok(())
    }

    fn run(&mut self, action: Action, inputs: Vec<i64>) -> anyhow::Result<Vec<i64>> {
        self.trip(At::Run(self.step, action))?;
        let micro = action.micro;
        let first = inputs.first().copied().unwrap_or(1);
        match action.kind {
            ActionKind::Forward => {
                let twice = self.held.insert(micro, first);
                ensure!(twice.is_none(), "two forwards of micro-batch {micro}");
                return Ok(vec![self.weight.wrapping_mul(first)]);
            }
            ActionKind::Backward => self.learn(micro, first)?,
            ActionKind::BackwardInput => drop(self.deferred.insert(micro, first)),
            ActionKind::BackwardWeight => {
                let gradient = self.deferred.remove(&micro).context("no I before")?;
                self.learn(micro, gradient)?;
                return Ok(Vec::new());
            }
            ActionKind::Recompute => return Ok(Vec::new()),
        }
        Ok(vec![self.weight.wrapping_mul(first)])
    }

    fn close_step(&mut self, step: usize) -> anyhow::Result<()> {
        ensure!(step == self.step, "step {step} after {}", self.step);
        ensure!(
            self.held.is_empty() && self.deferred.is_empty(),
            "its gradients are not whole"
        );
        self.trip(At::Close(step, self.id))?;
        self.update();
        self.step += 1;
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        ensure!(self.held.is_empty() && self.deferred.is_empty());
        Ok(())
    }

    fn abort(&mut self) {
        (self.weight, self.gradient) = (self.before, 0);
        self.held.clear();
        self.deferred.clear();
    }
}

struct Rig {
    engine: Engine<Learner>,
    program: Arc<Program>,
}

type Numbers = (EdgeValues<i64>, EdgeValues<i64>);

impl Rig {
    fn new(schedule: &CheckedSchedule, cores: Option<usize>) -> Self {
        let plain = schedule.schedule();
        let topology = Topology::chain(plain.stages());
        let devices = (0..plain.devices()).map(DeviceId);
        let builder = |device| {
            let stages = schedule.stages_on(device);
            let built = move || {
                Ok(stages
                    .into_iter()
                    .map(|id| (id, Learner::new(id)))
                    .collect())
            };
            Box::new(built) as StageBuilder<Learner>
        };
        let builders = devices.clone().map(builder).collect();
        let sharing = cores.map(|max_concurrent| Sharing {
            devices: devices.collect(),
            max_concurrent,
            affinity: Arc::new(Unpinned),
        });
        let engine = match &sharing {
            Some(sharing) => Engine::taking_turns(builders, sharing),
            None => Engine::new(builders),
        };
        Self {
            engine: engine.unwrap(),
            program: Arc::new(Program::new(schedule.clone(), &topology).unwrap()),
        }
    }

    fn entries(&self, steps: std::ops::Range<usize>) -> Vec<Entry<i64>> {
        let m = self.program.micro_batches();
        let entry = |(at, number)| Entry {
            edge: EdgeId(0),
            micro: MicroId(at),
            value: 11 + 3 * number as i64,
        };
        (0..)
            .zip(steps.start * m..steps.end * m)
            .map(entry)
            .collect()
    }

    fn in_a_row(&mut self, steps: usize, settings: Settings) -> Result<Numbers, EngineError> {
        let program = Arc::new(self.program.in_a_row(steps).unwrap());
        let entries = self.entries(0..steps);
        let outcome = self.engine.step(&program, Arc::new(settings), entries)?;
        Ok((outcome.exits, outcome.gradients))
    }

    /// The same with a barrier after each step: the oracle.
    fn with_barriers(&mut self, steps: usize) -> Numbers {
        let (mut exits, mut gradients) = (EdgeValues::new(), EdgeValues::new());
        let m = self.program.micro_batches();
        for step in 0..steps {
            let entries = self.entries(step..step + 1);
            let outcome = self.engine.step(&self.program, Arc::default(), entries);
            let outcome = outcome.unwrap();
            let later = |((edge, micro), value): ((EdgeId, MicroId), i64)| {
                ((edge, MicroId(step * m + micro.index())), value)
            };
            exits.extend(outcome.exits.into_iter().map(later));
            gradients.extend(outcome.gradients.into_iter().map(later));
            let update = |_, stage: &mut Learner| {
                stage.update();
                Ok(())
            };
            self.engine.on_each(update).unwrap();
        }
        (exits, gradients)
    }

    fn weights(&mut self) -> Vec<i64> {
        self.engine.on_each(|_, stage| Ok(stage.weight)).unwrap()
    }
}

fn case() -> impl Strategy<Value = (CheckedSchedule, usize)> {
    let kinds: Vec<_> = ScheduleKind::ALL
        .into_iter()
        .filter(|kind| kind.trains())
        .collect();
    let shape = (1..=4_usize, 1..=2_usize, 1..=6_usize);
    let shape = shape.prop_map(|(p, v, m)| Shape::new(p, m).with_chunks(v));
    let made = (prop::sample::select(kinds), shape, 1..=5_usize);
    made.prop_filter_map("no such schedule", |(kind, shape, steps)| {
        Some((kind.generate(shape).ok()?, steps))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn they_compute_what_steps_with_a_barrier_compute(
        (schedule, steps) in case(),
        cores in prop::option::of(1..=2_usize),
    ) {
        watched(move || {
            let (mut row, mut oracle) = (Rig::new(&schedule, cores), Rig::new(&schedule, None));
            for _ in 0..2 {
                let numbers = row.in_a_row(steps, Settings::default()).unwrap();
                assert_eq!(numbers, oracle.with_barriers(steps));
                assert_eq!(row.weights(), oracle.weights());
            }
        });
    }

    /// After any failure, wherever the others are, all stages are as before the first step.
    #[test]
    fn a_failure_undoes_all_of_them(
        (schedule, steps) in case(),
        cores in prop::option::of(1..=2_usize),
        (step, place) in (0..100_usize, 0..1000_usize),
        (closing, panics) in any::<(bool, bool)>(),
    ) {
        watched(move || {
            let step = step % steps;
            let all: Vec<Action> =
                schedule.schedule().iter().flat_map(|(_, list)| list).copied().collect();
            let action = all[place % all.len()];
            let at = if closing { At::Close(step, action.stage) } else { At::Run(step, action) };
            let (mut row, mut oracle) = (Rig::new(&schedule, cores), Rig::new(&schedule, None));
            let good = row.in_a_row(2, Settings::default()).unwrap();
            assert_eq!(good, oracle.with_barriers(2));
            let settings = Settings { fault: Some(at), panics, gate: None };
            let error = row.in_a_row(steps, settings).unwrap_err();
            let error = error.stage_error().unwrap();
            assert_eq!(error.stage, action.stage);
            let phase = if closing { Phase::CloseStep(step) } else { Phase::Action(action.kind) };
            assert_eq!(error.action, phase);
            assert_eq!(row.weights(), oracle.weights());
            let again = row.in_a_row(steps, Settings::default()).unwrap();
            assert_eq!(again, oracle.with_barriers(steps));
        });
    }
}

#[test]
fn a_stage_that_does_not_come_back_undoes_all_of_them_when_it_does() {
    let schedule = ScheduleKind::ZbH2.generate(Shape::new(3, 5)).unwrap();
    let (mut row, mut oracle) = (Rig::new(&schedule, None), Rig::new(&schedule, None));
    row.engine.set_patience(Some(Duration::from_millis(20)));
    for at in [
        At::Run(1, "1I2".parse().unwrap()),
        At::Close(1, StageId(2)),
        At::Close(2, StageId(0)),
    ] {
        let gate = Gate::default();
        let settings = Settings {
            fault: Some(at),
            panics: false,
            gate: Some(gate.clone()),
        };
        let error = row.in_a_row(3, settings).unwrap_err();
        assert!(matches!(error, EngineError::Stalled(_)), "{error}");
        gate.open();
        row.engine.set_patience(None);
        assert_eq!(row.weights(), oracle.weights());
        let good = row.in_a_row(2, Settings::default()).unwrap();
        assert_eq!(good, oracle.with_barriers(2));
        row.engine.set_patience(Some(Duration::from_millis(20)));
    }
}

#[test]
fn a_stage_that_cannot_close_a_step_says_so() {
    let schedule = ScheduleKind::GPipe.generate(Shape::new(1, 1)).unwrap();
    let topology = Arc::new(Topology::chain(1));
    let mut engine = crate::support::affine_engine(&schedule, &topology);
    let program = Program::new(schedule, &topology).unwrap();
    let program = Arc::new(program.in_a_row(2).unwrap());
    let entries = (0..2).map(|micro| Entry {
        edge: EdgeId(0),
        micro: MicroId(micro),
        value: 1,
    });
    let error = engine.step(&program, Arc::default(), entries.collect());
    let error = error.unwrap_err().to_string();
    let expected = "stage 0, layer `affine.0`, close of step 0 in a row: it cannot go from step 0";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn what_cannot_be_run_in_a_row_is_refused() {
    let schedule = |kind: ScheduleKind| kind.generate(Shape::new(2, 2)).unwrap();
    let topology = Topology::chain(2);
    let program = |kind| Program::new(schedule(kind), &topology).unwrap();
    let refused = |program: Program| {
        let error = program.in_a_row(2).unwrap_err();
        assert!(matches!(error, TopologyError::InARow { .. }), "{error}");
    };
    refused(program(ScheduleKind::ForwardOnly));
    refused(program(ScheduleKind::OneFOneB).in_a_row(2).unwrap());
    let here = |device| device == DeviceId(0);
    refused(Program::part(schedule(ScheduleKind::OneFOneB), &topology, here).unwrap());
    let two = vec![Some(schedule(ScheduleKind::OneFOneB)); 2];
    refused(Program::replicated(two, &topology, 2, |_| true).unwrap());
}
