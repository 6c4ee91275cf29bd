//! The stages as the pipeline drives them: the engine, and how what it does joins what
//! the caller does on accelerators before and after.

use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{MicroId, StageId};
use tch::{Device, Tensor};

use super::device_times::{Anchors, Times};
use super::readback::Until;
use crate::engine::{EdgeId, End, Engine, EngineError, Entry, Program, StepOutcome};
use crate::error::Error;
use crate::torch::streams::{Fork, Joint, Layer, Left, Parcel, Place};
use crate::torch::{self, Mode, StepSettings, TorchError, TorchStage, Values, copy_to_host};

/// An engine of stages.
#[derive(Debug)]
pub(crate) struct Stages {
    engine: Engine<TorchStage>,
    accelerators: Option<Accelerators>,
}

/// What there is to join.
#[derive(Debug, Clone)]
pub(super) struct Accelerators {
    pub(super) layer: Layer,
    /// The place of each device of the engine.
    pub(super) places: Vec<Place>,
    pub(super) joints: Vec<Arc<Joint>>,
    /// Whether a wait of the host inside of a step fails it.
    pub(super) forbid_host_waits: bool,
    anchors: Anchors,
}

/// What a step of the engine brought, and what accelerators say of it.
#[derive(Debug)]
pub(super) struct Stepped {
    pub(super) outcome: StepOutcome<Parcel>,
    /// By the devices' own clocks, where they have any.
    pub(super) times: Option<Times>,
}

impl Accelerators {
    pub(super) fn new(layer: Layer, places: Vec<Place>) -> Self {
        let joints = places.iter().map(|_| Arc::default()).collect();
        Self {
            layer,
            places,
            joints,
            forbid_host_waits: false,
            anchors: Anchors::default(),
        }
    }

    /// Their numbers, each once.
    fn devices(&self) -> Vec<usize> {
        let numbers = self.places.iter().filter_map(|place| match place {
            Place::Accelerator(device) => Some(*device),
            Place::Host => None,
        });
        let mut numbers: Vec<usize> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// # Errors
    /// A device is lost, now or since an earlier call.
    fn fork(&self) -> anyhow::Result<Arc<Fork>> {
        self.layer.is_there()?;
        let fork = Fork::new(&self.layer, self.devices().into_iter());
        Ok(Arc::new(fork.map_err(|error| self.explain_loss(error))?))
    }

    /// What the caller does next comes behind what the devices have been given.
    fn join(&self) -> anyhow::Result<Vec<Left>> {
        self.join_all().map_err(|error| self.explain_loss(error))
    }

    fn explain_loss(&self, error: TorchError) -> anyhow::Error {
        let error = error.into();
        let device = self.devices().into_iter().next();
        match device.map(|device| self.layer.current(device)) {
            Some(Ok(stream)) => (self.layer).explain_loss(stream, "what the caller does", error),
            _ => error,
        }
    }

    fn join_all(&self) -> Result<Vec<Left>, TorchError> {
        let left: Vec<Left> = self.joints.iter().map(|joint| joint.take()).collect();
        for device in self.devices() {
            let current = self.layer.current(device)?;
            let ends = left.iter().filter_map(|left| left.end.as_ref());
            for end in ends {
                self.layer.wait(current, end)?;
            }
        }
        Ok(left)
    }
}

impl Stages {
    /// What builds the stages comes before what the caller does next.
    pub(super) fn new(
        engine: Engine<TorchStage>,
        accelerators: Option<Accelerators>,
    ) -> Result<Self, Error> {
        let stages = Self {
            engine,
            accelerators,
        };
        if let Some(accelerators) = &stages.accelerators {
            accelerators.join().map_err(Error::Accelerator)?;
            let (layer, devices) = (&accelerators.layer, accelerators.devices());
            accelerators.anchors.drop_in(layer, &devices)?;
        }
        Ok(stages)
    }

    /// Whether no device computes on the host: what is put into their streams can be left
    /// to them.
    pub(super) fn run_by_themselves(&self) -> bool {
        let places = self.accelerators.iter().flat_map(|all| &all.places);
        let mut places = places.peekable();
        places.peek().is_some() && places.all(|place| *place != Place::Host)
    }

    /// While the result lives, a wait of the host fails what causes it, where that was
    /// asked for.
    pub(super) fn watch(&self) -> Result<Option<Watch>, TorchError> {
        let forbid = (self.accelerators.as_ref()).is_some_and(|all| all.forbid_host_waits);
        forbid.then(Watch::begin).transpose()
    }

    /// A tensor in the host's memory, and what tells when it is there. It begins its way
    /// behind what the caller's current streams have.
    pub(super) fn to_host(&self, tensor: Tensor) -> Result<(Tensor, Option<Until>), TorchError> {
        let (Some(all), Device::Cuda(device)) = (&self.accelerators, tensor.device()) else {
            return Ok((tensor, None));
        };
        let copy = copy_to_host(&tensor)?;
        let stream = all.layer.current(device)?;
        let ready = all.layer.record(stream)?;
        Ok((copy, Some((all.layer.clone(), stream, ready))))
    }

    /// Notes what the caller's current stream has made where a stage is, for stages to use.
    pub(super) fn made(&self, tensor: &Tensor, stage: StageId) -> Result<(), TorchError> {
        let device = self.engine.device_of(stage);
        let (Some(all), Some(device)) = (&self.accelerators, device) else {
            return Ok(());
        };
        match all.places[device.index()] {
            Place::Accelerator(device) => all.layer.kept(tensor, device),
            Place::Host => Ok(()),
        }
    }

    /// As [`Engine::on_each`].
    pub(crate) fn on_each<R: Send + 'static>(
        &mut self,
        job: impl Fn(StageId, &mut TorchStage) -> anyhow::Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>, Error> {
        let Some(accelerators) = &self.accelerators else {
            return Ok(self.engine.on_each(job)?);
        };
        let fork = accelerators.fork().map_err(Error::Accelerator)?;
        let done = (self.engine).on_each(move |id, stage| task(&fork, stage, |own| job(id, own)));
        joined(accelerators, done)
    }

    /// As [`Engine::on_stage`].
    pub(crate) fn on_stage<R: Send + 'static>(
        &mut self,
        stage: StageId,
        job: impl FnOnce(&mut TorchStage) -> anyhow::Result<R> + Send + 'static,
    ) -> Result<R, Error> {
        let Some(accelerators) = &self.accelerators else {
            return Ok(self.engine.on_stage(stage, job)?);
        };
        let fork = accelerators.fork().map_err(Error::Accelerator)?;
        let done = (self.engine).on_stage(stage, move |stage| task(&fork, stage, job));
        joined(accelerators, done)
    }

    /// Runs a program over what the caller gives: for each edge from the caller, in
    /// their order, a value for each micro-batch.
    pub(super) fn step(
        &mut self,
        program: &Arc<Program>,
        step: u64,
        mode: Mode,
        columns: Vec<Vec<Values>>,
    ) -> Result<Stepped, Error> {
        let accelerators = self.accelerators.clone();
        let fork = accelerators.as_ref().map(Accelerators::fork).transpose();
        let fork = fork.map_err(Error::Accelerator)?;
        let parcel = |values| match (&accelerators, &fork) {
            (Some(accelerators), Some(fork)) => fork.parcel(&accelerators.layer, values),
            _ => Ok(Parcel::from(values)),
        };
        let entries = entries(program, columns, parcel)?;
        let settings = Arc::new(StepSettings { step, mode, fork });
        let epoch = Instant::now();
        let watch = self.watch()?;
        let outcome = self.engine.step(program, settings, entries);
        drop(watch);
        let Some(accelerators) = accelerators else {
            return Ok(Stepped {
                outcome: outcome?,
                times: None,
            });
        };
        if outcome.is_err() {
            // Those that never came to the end of the step. A device that fails fails here
            // too, and the step's own error says more.
            let _ = self.engine.on_each(|_, stage| Ok(stage.lane().end()?));
        }
        let left = accelerators.join();
        let mut outcome = outcome?;
        let left = left.map_err(Error::Accelerator)?;
        let shares = accelerators.devices().into_iter();
        let shares: Vec<_> = shares
            .map(|device| accelerators.layer.share(device))
            .collect();
        for parcel in outcome.exits.values().chain(outcome.gradients.values()) {
            parcel.hand_out(&accelerators.layer)?;
        }
        drop(shares);
        let events = std::mem::take(&mut outcome.events);
        let times = Times::new(
            &accelerators.layer,
            &accelerators.places,
            left,
            events,
            epoch,
            &accelerators.anchors,
        );
        Ok(Stepped { outcome, times })
    }
}

/// See [`Stages::watch`].
#[derive(Debug)]
pub(super) struct Watch;

impl Watch {
    fn begin() -> Result<Self, TorchError> {
        torch::forbid_waits(true)?;
        Ok(Self)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // What could be switched on can be switched off.
        let _ = torch::forbid_waits(false);
    }
}

/// A task of a stage between what the caller does before and after.
fn task<R>(
    fork: &Fork,
    stage: &mut TorchStage,
    job: impl FnOnce(&mut TorchStage) -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    let lane = stage.shared_lane();
    let _shared = lane.sharing();
    let done = lane
        .begin(Some(fork))
        .map_err(anyhow::Error::from)
        .and_then(|()| job(stage));
    let ended = lane.end();
    // What the task itself says of what went wrong says more.
    let done = done.and_then(|done| Ok(ended.map(|()| done)?));
    done.map_err(|error| lane.explain_loss("a task of a stage", error))
}

/// What a task came to, joined with what the caller does next.
fn joined<R>(accelerators: &Accelerators, done: Result<R, EngineError>) -> Result<R, Error> {
    let joined = accelerators.join();
    let done = done?;
    joined.map_err(Error::Accelerator)?;
    Ok(done)
}

/// Micro-batches for each edge from the caller, in the order of the edges.
fn entries(
    program: &Program,
    columns: Vec<Vec<Values>>,
    parcel: impl Fn(Values) -> Result<Parcel, TorchError>,
) -> Result<Vec<Entry<Parcel>>, TorchError> {
    let topology = program.topology();
    let edges: Vec<EdgeId> = topology.outgoing(End::Caller).map(|(id, _)| id).collect();
    let mut entries = Vec::new();
    for (edge, parts) in edges.into_iter().zip(columns) {
        for (micro, values) in parts.into_iter().enumerate() {
            entries.push(Entry {
                edge,
                micro: MicroId(micro),
                value: parcel(values)?,
            });
        }
    }
    Ok(entries)
}
