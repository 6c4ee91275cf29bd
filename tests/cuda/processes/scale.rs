//! A pipeline without layers: stages that multiply by a number, on GPUs of several processes.

use std::sync::Arc;

use anyhow::ensure;
use gpipe::Values;
use gpipe::engine::{
    EdgeId, EdgeValues, Engine, EngineError, Entry, Program, Stage, StageBuilder, StepOutcome,
    Topology,
};
use gpipe::partitioner::{Action, ActionKind, CheckedSchedule, DeviceId, MicroId, StageId};
use gpipe::tch::{Device, Kind, Tensor};
use gpipe::world::{Parcel, World, WorldCarrier};

use crate::simulated;

const LIMIT: u64 = 1 << 30;

/// Instructions for the stages in one step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Task {
    /// The action that fails.
    pub(super) fault: Option<Action>,
    /// A stage, and the matrix products that each of its actions runs before sending.
    pub(super) slow: Option<(StageId, usize)>,
    /// Hosts do not wait for received values.
    pub(super) ahead: bool,
    /// The action at which its process ends, as if killed.
    pub(super) dies: Option<Action>,
}

/// Multiplies by its own number. Its values have several tensors, some absent, with gaps, of other kinds or
/// in host memory, and two that share memory.
pub(super) struct Scale {
    id: StageId,
    device: Device,
    /// Whether its inputs come from another process's GPU, except for those of the caller.
    exact: bool,
    /// The last stage computes its own gradients.
    last: bool,
    task: Task,
    held: Vec<(MicroId, Tensor)>,
    /// Sum over micro-batches, in the order of their backwards.
    gradient: Option<Tensor>,
    before: Option<Tensor>,
}

fn share(x: &Tensor) -> Values {
    // A column slice, which leaves gaps between the rows.
    let gaps = (Tensor::cat(&[x, x], 1) * 2.0).narrow(1, 1, 3);
    let on_host = Tensor::from_slice(&[x.size()[0], 7]);
    [
        Some(x.shallow_clone()),
        None,
        Some(x.tr()),
        Some(gaps),
        Some(x.to_kind(Kind::Half)),
        Some(on_host),
        Some(x.narrow(0, 0, 0) + 1.0),
    ]
    .into_iter()
    .collect()
}

/// Checks that values arrived unchanged; `exact`: with the same gaps, which a copy to another device removes.
fn check(values: &Values, device: Device, exact: bool) -> anyhow::Result<()> {
    ensure!(values.len() == 7 && values.get(1).is_none(), "other values");
    let [x, y, gaps, half, host, empty] =
        [0, 2, 3, 4, 5, 6].map(|place| values.get(place).unwrap());
    ensure!(
        x.device() == device && empty.device() == device,
        "elsewhere"
    );
    ensure!(x.data_ptr() == y.data_ptr(), "they share no memory");
    ensure!(x.tr().equal(y), "another view");
    let strides = gaps.stride();
    ensure!(!exact || strides == [10, 1], "gaps as {strides:?}");
    let twice = Tensor::cat(&[x, x], 1) * 2.0;
    ensure!(twice.narrow(1, 1, 3).equal(gaps), "others between the gaps");
    ensure!(x.to_kind(Kind::Half).equal(half), "others in f16");
    ensure!(
        Vec::<i64>::try_from(host.to_device(Device::Cpu))? == [x.size()[0], 7],
        "others on the host"
    );
    ensure!(empty.size() == [0, 5], "another empty one");
    Ok(())
}

impl Scale {
    fn factor(&self) -> f64 {
        1.1 + self.id.index() as f64 / 7.0
    }

    /// Keeps the device busy, and returns the tensor unchanged.
    fn slowly(&self, x: Tensor) -> Tensor {
        let Some((_, products)) = self.task.slow.filter(|(stage, _)| *stage == self.id) else {
            return x;
        };
        let mut square = Tensor::zeros([400, 400], (Kind::Float, self.device));
        for _ in 0..products {
            square = square.matmul(&square);
        }
        x + square.sum(Kind::Float)
    }

    /// Checks received values, which makes the host wait.
    fn check(&self, given: &Values, exact: bool) -> anyhow::Result<()> {
        if self.task.ahead {
            return Ok(());
        }
        check(given, self.device, exact)
    }
}

impl Stage for Scale {
    type Value = Parcel;
    type Step = Task;

    fn begin(&mut self, task: &Arc<Task>) -> anyhow::Result<()> {
        self.task = **task;
        self.before = self.gradient.as_ref().map(|gradient| gradient + 0.0);
        Ok(())
    }

    fn run(&mut self, action: Action, mut inputs: Vec<Parcel>) -> anyhow::Result<Vec<Parcel>> {
        ensure!(self.task.fault != Some(action), "as asked");
        if self.task.dies == Some(action) {
            std::process::abort();
        }
        let given = inputs.pop().map(|parcel| parcel.open(self.device));
        let given = given.transpose()?;
        let sent = match action.kind {
            ActionKind::Forward => {
                let given = given.unwrap_or_default();
                self.check(&given, self.exact && self.id.index() > 0)?;
                let x = given.get(0).unwrap();
                self.held.push((action.micro, x * 1.0));
                x * self.factor()
            }
            ActionKind::Backward => {
                let mut held = self.held.iter();
                let place = held.position(|(micro, _)| *micro == action.micro);
                let (_, x) = self.held.remove(place.unwrap());
                let gradient = if self.last {
                    x.ones_like()
                } else {
                    let given = given.unwrap_or_default();
                    self.check(&given, self.exact)?;
                    given.get(0).unwrap().shallow_clone()
                };
                let own = (&gradient * &x).sum(Kind::Double);
                self.gradient = Some(match self.gradient.take() {
                    Some(sum) => sum + own,
                    None => own,
                });
                gradient * self.factor()
            }
            _ => return Ok(Vec::new()),
        };
        Ok(vec![Parcel::new(share(&self.slowly(sent)))?])
    }

    fn end(&mut self) -> anyhow::Result<()> {
        // Left over from inference.
        self.held.clear();
        Ok(())
    }

    fn abort(&mut self) {
        self.held.clear();
        self.gradient = self.before.take();
    }
}

fn builder(
    stages: Vec<StageId>,
    all: usize,
    (device, exact): (Device, bool),
) -> StageBuilder<Scale> {
    let stage = move |id: StageId| {
        let scale = Scale {
            id,
            device,
            exact,
            last: id.index() + 1 == all,
            task: Task::default(),
            held: Vec::new(),
            gradient: None,
            before: None,
        };
        (id, scale)
    };
    Box::new(move || {
        // As in a pipeline, only the stage's own stream writes the values that it sends.
        if let Device::Cuda(gpu) = device
            && simulated::has_simulated_devices()
        {
            let gpu = gpu as i32;
            simulated::sim_enter_stream(gpu, simulated::sim_new_stream(gpu));
        }
        Ok(stages.into_iter().map(stage).collect())
    })
}

/// Shapes differ between micro-batches, one of them large, and change in the third step.
fn entry(micro: usize, step: usize) -> Entry<Parcel> {
    let rows = match (micro, step) {
        (1, 0..2) => 300,
        (1 | 3, 2) => 7,
        _ => 2 + micro as i64,
    };
    let x = Tensor::arange(rows * 5, (Kind::Float, Device::Cpu)).view([rows, 5]) / 3.0;
    Entry {
        edge: EdgeId(0),
        micro: MicroId(micro),
        value: Parcel::new(share(&x)).unwrap(),
    }
}

/// Numbers of a step: outputs and gradients by micro-batch, then the stages' sums.
pub(super) type Numbers = (Vec<(usize, Vec<f64>)>, Vec<(usize, f64)>);

fn numbers(values: EdgeValues<Parcel>) -> Vec<(usize, Vec<f64>)> {
    let values = values.into_iter().map(|((_, micro), parcel)| {
        let values = parcel.open(Device::Cpu).unwrap();
        let flat = values.get(2).unwrap().contiguous().view(-1);
        let numbers = Vec::<f64>::try_from(flat.to_kind(Kind::Double)).unwrap();
        (micro.index(), numbers)
    });
    values.collect()
}

/// An engine for some of the devices.
pub(super) struct Part {
    engine: Engine<Scale>,
    program: Arc<Program>,
    /// Whether this part has the first stage.
    first: bool,
    /// Number of successful steps.
    done: usize,
}

/// Placement of a pipeline's devices.
#[derive(Clone)]
pub(super) struct Places {
    pub(super) rank_of: Vec<usize>,
    pub(super) gpus: Vec<usize>,
    /// Whether values may pass from GPU to GPU.
    pub(super) by_nccl: bool,
}

impl Places {
    /// Places each device on the GPU of its number.
    pub(super) fn new(rank_of: &[usize]) -> Self {
        Self {
            rank_of: rank_of.to_vec(),
            gpus: (0..rank_of.len()).collect(),
            by_nccl: true,
        }
    }
}

impl Part {
    pub(super) fn new(world: &Arc<World>, schedule: &CheckedSchedule, places: &Places) -> Self {
        let rank = world.rank();
        let here = |device: DeviceId| places.rank_of[device.index()] == rank;
        let stages = schedule.schedule().stages();
        let gpu = |device: DeviceId| places.gpus[device.index()];
        let own = (0..places.rank_of.len())
            .map(DeviceId)
            .filter(|device| here(*device));
        let builders = own.map(|device| {
            let mut same = places.gpus.iter().filter(|other| **other == gpu(device));
            let exact = places.by_nccl && same.nth(1).is_none();
            let on = (Device::Cuda(gpu(device)), exact);
            (device, builder(schedule.stages_on(device), stages, on))
        });
        let gpus: Vec<_> = places.gpus.iter().map(|gpu| Some(*gpu)).collect();
        let gpus = if places.by_nccl { &gpus[..] } else { &[] };
        let carrier = WorldCarrier::connect_gpus(world, places.rank_of.clone(), LIMIT, gpus);
        let builders = builders.collect();
        let devices = places.rank_of.len();
        let engine = Engine::part(devices, builders, None, Arc::new(carrier.unwrap())).unwrap();
        let program = Program::part(schedule.clone(), &Topology::chain(stages), here).unwrap();
        Self {
            first: here(schedule.device_of(StageId(0))),
            done: 0,
            engine,
            program: Arc::new(program),
        }
    }

    pub(super) fn step(&mut self, task: Task) -> Result<Numbers, EngineError> {
        let outcome = self.ahead(task)?;
        let mut values = numbers(outcome.exits);
        values.extend(numbers(outcome.gradients));
        Ok((values, self.sums()?))
    }

    /// Runs a step without waiting for it on the host.
    pub(super) fn ahead(&mut self, task: Task) -> Result<StepOutcome<Parcel>, EngineError> {
        let micros = self.program.schedule().schedule().micro_batches();
        let entry = |micro| entry(micro, self.done);
        let entries = (0..micros).filter(|_| self.first).map(entry).collect();
        let outcome = self.engine.step(&self.program, Arc::new(task), entries)?;
        self.done += 1;
        Ok(outcome)
    }

    /// The sums of this part's stages.
    pub(super) fn sums(&mut self) -> Result<Vec<(usize, f64)>, EngineError> {
        self.engine.on_each(|id: StageId, stage: &mut Scale| {
            let sum = stage.gradient.as_ref();
            Ok((id.index(), sum.map_or(0.0, |sum| sum.double_value(&[]))))
        })
    }
}

/// Reference numbers of one engine on the same GPUs.
pub(super) fn alone(schedule: &CheckedSchedule, steps: usize) -> Vec<Numbers> {
    let plain = schedule.schedule();
    let devices = (0..plain.devices()).map(DeviceId);
    let builders = devices.map(|device| {
        let on = (Device::Cuda(device.index()), false);
        builder(schedule.stages_on(device), plain.stages(), on)
    });
    let engine = Engine::new(builders.collect()).unwrap();
    let program = Program::new(schedule.clone(), &Topology::chain(plain.stages())).unwrap();
    let mut part = Part {
        engine,
        program: Arc::new(program),
        first: true,
        done: 0,
    };
    (0..steps)
        .map(|_| part.step(Task::default()).unwrap())
        .collect()
}

/// Merges the numbers of all parts.
pub(super) fn together(all: impl Iterator<Item = Numbers>) -> Numbers {
    let (mut values, mut sums) = (Vec::new(), Vec::new());
    for (own, here) in all {
        values.extend(own);
        sums.extend(here);
    }
    values.sort_by(|one, other| one.partial_cmp(other).unwrap());
    sums.sort_by_key(|(stage, _)| *stage);
    (values, sums)
}
