//! Engines of several processes, here threads of one, over gloo.

mod late;

use anyhow::ensure;
use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, MicroId, ScheduleKind, Shape, StageId,
};

use super::*;
use crate::Values;
use crate::testing::ranks;
use gpipe_engine::{EdgeId, EdgeValues, Engine, EngineError, Entry, Stage, StageBuilder, Topology};
use tch::{Device, Kind, Tensor};

const LIMIT: u64 = 1 << 30;
const STEPS: usize = 4;

/// Multiplies by a number of its own; of its inputs it returns the second tensor, an absent one,
/// and a transposed view of the first, which shares its memory.
struct Scale {
    id: StageId,
    /// The last stage computes its own gradients.
    last: bool,
    /// Fails here.
    fault: Option<Action>,
    held: Vec<(MicroId, Tensor)>,
    /// Sum over micro-batches, in the order of their backwards.
    gradient: Option<Tensor>,
    before: Option<Tensor>,
}

fn share(x: &Tensor) -> Values {
    [Some(x.shallow_clone()), None, Some(x.tr())]
        .into_iter()
        .collect()
}

impl Scale {
    fn factor(&self) -> f64 {
        1.1 + self.id.index() as f64 / 7.0
    }
}

impl Stage for Scale {
    type Value = Values;
    type Step = Option<Action>;

    fn begin(&mut self, fault: &Arc<Option<Action>>) -> anyhow::Result<()> {
        self.fault = **fault;
        self.before = self.gradient.as_ref().map(|gradient| gradient + 0.0);
        Ok(())
    }

    fn run(&mut self, action: Action, mut inputs: Vec<Values>) -> anyhow::Result<Vec<Values>> {
        ensure!(self.fault != Some(action), "as asked");
        let given = inputs.pop().unwrap_or_default();
        match action.kind {
            ActionKind::Forward => {
                ensure!(given.len() == 3 && given.get(1).is_none(), "other values");
                let x = given.get(0).unwrap();
                let y = given.get(2).unwrap();
                ensure!(
                    x.data_ptr() == y.data_ptr() && x.tr() == *y,
                    "they share no memory"
                );
                self.held.push((action.micro, x * 1.0));
                Ok(vec![share(&(x * self.factor()))])
            }
            ActionKind::Backward => {
                let place = self
                    .held
                    .iter()
                    .position(|(micro, _)| *micro == action.micro);
                let (_, x) = self.held.remove(place.unwrap());
                let gradient = if self.last {
                    x.ones_like()
                } else {
                    given.get(0).unwrap().shallow_clone()
                };
                let own = (&gradient * &x).sum(Kind::Double);
                self.gradient = Some(match self.gradient.take() {
                    Some(sum) => sum + own,
                    None => own,
                });
                Ok(vec![share(&(gradient * self.factor()))])
            }
            _ => Ok(Vec::new()),
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        // Left by inference.
        self.held.clear();
        Ok(())
    }

    fn abort(&mut self) {
        self.held.clear();
        self.gradient = self.before.take();
    }
}

fn builder(stages: Vec<StageId>, all: usize) -> StageBuilder<Scale> {
    let stage = move |id: StageId| {
        let scale = Scale {
            id,
            last: id.index() + 1 == all,
            fault: None,
            held: Vec::new(),
            gradient: None,
            before: None,
        };
        (id, scale)
    };
    Box::new(move || Ok(stages.into_iter().map(stage).collect()))
}

/// A different shape in each micro-batch, one of them large; some change in the third step.
fn entry(micro: usize, step: usize) -> Entry<Values> {
    let rows = match (micro, step) {
        (1, 0..2) => 300,
        (1 | 3, 2) => 7,
        _ => 2 + micro as i64,
    };
    let x = Tensor::arange(rows * 5, (Kind::Float, Device::Cpu)).view([rows, 5]) / 3.0;
    Entry {
        edge: EdgeId(0),
        micro: MicroId(micro),
        value: share(&x),
    }
}

fn generated(kind: ScheduleKind, devices: usize, micros: usize) -> CheckedSchedule {
    let shape = Shape::new(devices, micros).with_chunks(kind.default_chunks());
    kind.generate(shape).unwrap()
}

/// Numbers of a step: outputs and gradients by micro-batch, then the stages' sums.
type Numbers = (Vec<(usize, Vec<f64>)>, Vec<(usize, f64)>);

fn numbers(values: EdgeValues<Values>) -> Vec<(usize, Vec<f64>)> {
    let values = values.into_iter().map(|((_, micro), values)| {
        let flat = values.get(2).unwrap().contiguous().view(-1);
        let numbers = Vec::<f64>::try_from(flat.to_kind(Kind::Double)).unwrap();
        (micro.index(), numbers)
    });
    values.collect()
}

struct Part {
    engine: Engine<Scale>,
    program: Arc<Program>,
    /// Whether the first stage is in this process.
    first: bool,
    /// Steps that succeeded.
    done: usize,
}

impl Part {
    fn new(world: &Arc<World>, schedule: &CheckedSchedule, rank_of: &[usize]) -> Self {
        let rank = world.rank();
        let here = |device: DeviceId| rank_of[device.index()] == rank;
        let stages = schedule.schedule().stages();
        let own = (0..rank_of.len())
            .map(DeviceId)
            .filter(|device| here(*device));
        let builders = own.map(|device| (device, builder(schedule.stages_on(device), stages)));
        let carrier = WorldCarrier::connect(world, rank_of.to_vec(), LIMIT).unwrap();
        let builders = builders.collect();
        let engine = Engine::part(rank_of.len(), builders, None, Arc::new(carrier)).unwrap();
        let program = Program::part(schedule.clone(), &Topology::chain(stages), here).unwrap();
        Self {
            first: here(schedule.device_of(StageId(0))),
            done: 0,
            engine,
            program: Arc::new(program),
        }
    }

    fn step(&mut self, fault: Option<Action>) -> Result<Numbers, EngineError> {
        let micros = self.program.schedule().schedule().micro_batches();
        let entry = |micro| entry(micro, self.done);
        let entries = (0..micros).filter(|_| self.first).map(entry).collect();
        let outcome = self.engine.step(&self.program, Arc::new(fault), entries)?;
        self.done += 1;
        let mut values = numbers(outcome.exits);
        values.extend(numbers(outcome.gradients));
        let sum = |id: StageId, stage: &mut Scale| {
            let sum = stage.gradient.as_ref();
            Ok((id.index(), sum.map_or(0.0, |sum| sum.double_value(&[]))))
        };
        Ok((values, self.engine.on_each(sum)?))
    }
}

/// Returns the numbers of a single engine.
fn alone(schedule: &CheckedSchedule) -> Vec<Numbers> {
    let plain = schedule.schedule();
    let devices = (0..plain.devices()).map(DeviceId);
    let builders = devices.map(|device| builder(schedule.stages_on(device), plain.stages()));
    let engine = Engine::new(builders.collect()).unwrap();
    let program = Program::new(schedule.clone(), &Topology::chain(plain.stages())).unwrap();
    let mut part = Part {
        engine,
        program: Arc::new(program),
        first: true,
        done: 0,
    };
    (0..STEPS).map(|_| part.step(None).unwrap()).collect()
}

fn together(all: impl Iterator<Item = Numbers>) -> Numbers {
    let (mut values, mut sums) = (Vec::new(), Vec::new());
    for (own, here) in all {
        values.extend(own);
        sums.extend(here);
    }
    values.sort_by(|one, other| one.partial_cmp(other).unwrap());
    sums.sort_by_key(|(stage, _)| *stage);
    (values, sums)
}

#[test]
fn processes_give_the_bits_of_one() {
    for (kind, rank_of) in [
        (ScheduleKind::GPipe, vec![0, 1]),
        (ScheduleKind::OneFOneB, vec![0, 1, 2]),
        (ScheduleKind::OneFOneB, vec![0, 1, 0, 1]),
        (ScheduleKind::Interleaved1F1B, vec![0, 1]),
        (ScheduleKind::ForwardOnly, vec![1, 0, 2]),
    ] {
        let schedule = generated(kind, rank_of.len(), 4);
        let expected = alone(&schedule);
        let size = rank_of.iter().max().unwrap() + 1;
        let all = ranks(size, move |world| {
            let world = Arc::new(world);
            let mut part = Part::new(&world, &schedule, &rank_of);
            let steps: Vec<Numbers> = (0..STEPS).map(|_| part.step(None).unwrap()).collect();
            drop(part);
            Arc::into_inner(world).unwrap().leave().unwrap();
            steps
        });
        for (step, expected) in expected.into_iter().enumerate() {
            let own = all.iter().map(|steps| steps[step].clone());
            let (values, sums) = together(own);
            let (right, right_sums) = together(std::iter::once(expected));
            assert_eq!(sums, right_sums, "{kind}");
            assert_eq!(values, right, "{kind}");
        }
    }
}

/// A tag may belong to other devices in another program. The two ends then remembered different
/// headers, one sent messages that the other did not receive, and all hung.
#[test]
fn programs_take_turns() {
    let rank_of = [0, 1, 0, 1];
    let schedules = [
        generated(ScheduleKind::ForwardOnly, 4, 4),
        generated(ScheduleKind::OneFOneB, 4, 4),
        generated(ScheduleKind::GPipe, 4, 3),
    ];
    let expected: Vec<_> = schedules.iter().map(alone).collect();
    let all = ranks(2, move |world| {
        let world = Arc::new(world);
        let mut part = Part::new(&world, &schedules[0], &rank_of);
        let here = |device: DeviceId| rank_of[device.index()] == world.rank();
        let programs = schedules
            .clone()
            .map(|schedule| Arc::new(Program::part(schedule, &Topology::chain(4), here).unwrap()));
        let turns = (0..9).map(|turn| {
            part.program = Arc::clone(&programs[turn % 3]);
            part.done = 0;
            part.step(None).unwrap().0
        });
        let values: Vec<_> = turns.collect();
        drop(part);
        Arc::into_inner(world).unwrap().leave().unwrap();
        values
    });
    for turn in 0..9 {
        let own = all.iter().map(|turns| (turns[turn].clone(), Vec::new()));
        let (values, _) = together(own);
        let first = (expected[turn % 3][0].0.clone(), Vec::new());
        assert_eq!(values, together(std::iter::once(first)).0, "turn {turn}");
    }
}

#[test]
fn a_failure_is_undone_in_all_processes_and_the_next_step_is_right() {
    let schedule = generated(ScheduleKind::OneFOneB, 3, 4);
    let actions: Vec<Action> = ["0F0", "1F3", "2B1", "1B0", "0B3"]
        .iter()
        .map(|action| action.parse().unwrap())
        .collect();
    let expected = alone(&schedule);
    let own = actions.clone();
    let all = ranks(3, move |world| {
        let world = Arc::new(world);
        let mut part = Part::new(&world, &schedule, &[0, 1, 2]);
        let errors = own
            .iter()
            .map(|action| part.step(Some(*action)).unwrap_err());
        let errors: Vec<_> = errors.map(|error| error.to_string()).collect();
        let good: Vec<_> = (0..STEPS).map(|_| part.step(None).unwrap()).collect();
        drop(part);
        let world = Arc::into_inner(world).unwrap();
        let told = (errors, good, world.generation(), world.host().to_owned());
        world.leave().unwrap();
        told
    });
    for (number, action) in actions.iter().enumerate() {
        let failed = action.stage.index();
        for (rank, (errors, _, generation, host)) in all.iter().enumerate() {
            let own = &all[failed].0[number];
            assert!(
                own.contains("as asked") && own.starts_with("stage "),
                "{own}"
            );
            if rank != failed {
                assert_eq!(
                    errors[number],
                    format!("rank {failed}: {own} (on `{host}`)")
                );
            }
            assert_eq!(*generation, actions.len() as u64);
        }
    }
    for (step, expected) in expected.into_iter().enumerate() {
        let own = all.iter().map(|(_, good, ..)| good[step].clone());
        assert_eq!(together(own), together(std::iter::once(expected)));
    }
}

/// Two of three processes fail as soon as they have the ballots: the third one still gets their
/// data. Before votes carried data, it only had to know that they had ended.
#[test]
fn a_vote_ends_alike_in_all_whatever_fails_behind_it() {
    let all = ranks(3, move |world| {
        let world = Arc::new(world);
        let rank = world.rank();
        let carrier = WorldCarrier::<Values>::connect(&world, vec![0, 1, 2], LIMIT).unwrap();
        let mut heard = Vec::new();
        for round in 0..20_u8 {
            carrier.begin_call("good");
            // Longer than one message.
            let told = vec![round; (rank + 1) * 9000];
            heard.push(carrier.vote(Ballot::Done(told)).unwrap());
            carrier.begin_call("bad");
            let ballot = match rank {
                2 => Ballot::Done(Vec::new()),
                _ => Ballot::Failed(format!("rank {rank} fails")),
            };
            let verdict = carrier.vote(ballot).unwrap();
            assert!(matches!(verdict, Verdict::Failed { rank: 0 | 1, .. }));
            carrier.renew().unwrap();
        }
        drop(carrier);
        Arc::into_inner(world).unwrap().leave().unwrap();
        heard
    });
    for heard in all {
        for (round, verdict) in (0..).zip(heard) {
            let told = (1..=3).map(|rank| vec![round; rank * 9000]);
            assert_eq!(verdict, Verdict::Done(told.collect()), "round {round}");
        }
    }
}

/// Neither votes before the other has done something that it never does.
#[test]
fn calls_that_wait_for_each_other_are_told_apart() {
    let said = ranks(2, move |world| {
        let world = Arc::new(world);
        let rank = world.rank();
        let carrier = WorldCarrier::<Values>::connect(&world, vec![0, 1], LIMIT).unwrap();
        carrier.begin_call("a step");
        carrier.vote(Ballot::Done(Vec::new())).unwrap();
        carrier.begin_call(["a save", "an evaluation"][rank]);
        let why = match rank {
            0 => carrier.gather(b"ready").unwrap_err().why,
            _ => carrier.take(0).unwrap_err().why,
        };
        let left = carrier.vote(Ballot::Left).unwrap();
        assert!(matches!(left, Verdict::Failed { .. }), "{left:?}");
        carrier.renew().unwrap();
        carrier.begin_call("a step");
        carrier.vote(Ballot::Done(Vec::new())).unwrap();
        drop(carrier);
        Arc::into_inner(world).unwrap().leave().unwrap();
        why
    });
    for why in &said {
        assert_eq!(why, &said[0]);
        assert!(
            why.contains("a save") && why.contains("an evaluation"),
            "{why}"
        );
    }
}

/// A value of another call is refused, even if the program is the same.
#[test]
fn steps_of_other_names_are_told_apart() {
    let schedule = generated(ScheduleKind::OneFOneB, 2, 4);
    let expected = alone(&schedule);
    let all = ranks(2, move |world| {
        let world = Arc::new(world);
        let rank_of = vec![0, 1];
        let here = |device: DeviceId| device.index() == world.rank();
        let own = DeviceId(world.rank());
        let carrier = Arc::new(WorldCarrier::connect(&world, rank_of, LIMIT).unwrap());
        let builders = vec![(own, builder(schedule.stages_on(own), 2))];
        let engine = Engine::part(
            2,
            builders,
            None,
            Arc::clone(&carrier) as Arc<dyn Carrier<_>>,
        );
        let program = Program::part(schedule.clone(), &Topology::chain(2), here).unwrap();
        let mut part = Part {
            engine: engine.unwrap(),
            program: Arc::new(program),
            first: world.rank() == 0,
            done: 0,
        };
        carrier.begin_call(["a step of 8 samples", "a step of 4 samples"][world.rank()]);
        let error = part.step(None).unwrap_err().to_string();
        let words = ["a step of 8 samples", "a step of 4 samples"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        carrier.begin_call("a step of 8 samples");
        let good = part.step(None).unwrap();
        drop((part, carrier));
        Arc::into_inner(world).unwrap().leave().unwrap();
        good
    });
    let expected = together(expected.into_iter().take(1));
    assert_eq!(together(all.into_iter()), expected);
}

#[test]
fn a_process_that_leaves_amid_a_step_is_named_by_all() {
    let schedule = generated(ScheduleKind::OneFOneB, 3, 4);
    let all = ranks(3, move |world| {
        let world = Arc::new(world);
        let mut part = Part::new(&world, &schedule, &[0, 1, 2]);
        if world.rank() == 1 {
            part.step(None).unwrap();
            world.lose("its card fell off the bus");
        }
        // The others may learn of it while the verdict of the previous step is on its way to them.
        let first = part.step(None).err();
        let error = first.unwrap_or_else(|| part.step(None).unwrap_err());
        assert!(matches!(error, EngineError::Lost(_)), "{error}");
        (error.to_string(), world.host().to_owned())
    });
    for (error, host) in all {
        let expected = format!("rank 1 is lost: its card fell off the bus (on `{host}`)");
        assert_eq!(error, expected);
    }
}
