//! The stages as the pipeline drives them: the engine, and how what it does joins what
//! the caller does on accelerators before and after.

use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::{MicroId, StageId};

use super::device_times::{DeviceTimes, device_times};
use crate::engine::{EdgeId, End, Engine, EngineError, Entry, Outcome, Program};
use crate::error::Error;
use crate::torch::streams::{Fork, Joint, Layer, Left, Parcel, Place};
use crate::torch::{self, Mode, StepSettings, TorchError, TorchStage, Values};

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
}

/// What a step of the engine brought, and what accelerators say of it.
#[derive(Debug)]
pub(super) struct Stepped {
    pub(super) outcome: Outcome<Parcel>,
    /// One for each device; none without accelerators.
    pub(super) left: Vec<Left>,
    /// When it began.
    pub(super) epoch: Instant,
}

impl Accelerators {
    pub(super) fn new(layer: Layer, places: Vec<Place>) -> Self {
        let joints = places.iter().map(|_| Arc::default()).collect();
        Self {
            layer,
            places,
            joints,
            forbid_host_waits: false,
        }
    }

    /// Runs a step under the rules for waits of the host.
    fn watching<T>(accelerators: Option<&Self>, step: impl FnOnce() -> T) -> Result<T, TorchError> {
        let forbid = accelerators.is_some_and(|all| all.forbid_host_waits);
        if !forbid {
            return Ok(step());
        }
        torch::forbid_waits(true)?;
        let done = step();
        torch::forbid_waits(false)?;
        Ok(done)
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

    fn fork(&self) -> Result<Arc<Fork>, TorchError> {
        Ok(Arc::new(Fork::new(
            &self.layer,
            self.devices().into_iter(),
        )?))
    }

    /// What the caller does next comes behind what the devices have been given.
    fn join(&self) -> Result<Vec<Left>, TorchError> {
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
            accelerators.join()?;
        }
        Ok(stages)
    }

    /// As [`Engine::on_each`].
    pub(crate) fn on_each<R: Send + 'static>(
        &mut self,
        job: impl Fn(StageId, &mut TorchStage) -> anyhow::Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>, EngineError> {
        let Some(accelerators) = &self.accelerators else {
            return self.engine.on_each(job);
        };
        let fork = accelerators.fork().map_err(outside)?;
        let done = self.engine.on_each(move |id, stage| {
            stage.lane().begin(Some(&fork))?;
            let done = job(id, stage);
            stage.lane().end()?;
            done
        });
        accelerators.join().map_err(outside)?;
        done
    }

    /// As [`Engine::on_stage`].
    pub(crate) fn on_stage<R: Send + 'static>(
        &mut self,
        stage: StageId,
        job: impl FnOnce(&mut TorchStage) -> anyhow::Result<R> + Send + 'static,
    ) -> Result<R, EngineError> {
        let Some(accelerators) = &self.accelerators else {
            return self.engine.on_stage(stage, job);
        };
        let fork = accelerators.fork().map_err(outside)?;
        let done = self.engine.on_stage(stage, move |stage| {
            stage.lane().begin(Some(&fork))?;
            let done = job(stage);
            stage.lane().end()?;
            done
        });
        accelerators.join().map_err(outside)?;
        done
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
        let fork = accelerators.as_ref().map(Accelerators::fork).transpose()?;
        let parcel = |values| match (&accelerators, &fork) {
            (Some(accelerators), Some(fork)) => fork.parcel(&accelerators.layer, values),
            _ => Ok(Parcel::from(values)),
        };
        let entries = entries(program, columns, parcel)?;
        let settings = Arc::new(StepSettings { step, mode, fork });
        let epoch = Instant::now();
        let outcome = Accelerators::watching(accelerators.as_ref(), || {
            self.engine.step(program, settings, entries)
        })?;
        let Some(accelerators) = accelerators else {
            let left = Vec::new();
            return Ok(Stepped {
                outcome: outcome?,
                left,
                epoch,
            });
        };
        if outcome.is_err() {
            // Those that never came to the end of the step.
            self.engine.on_each(|_, stage| Ok(stage.lane().end()?))?;
        }
        let left = accelerators.join()?;
        let outcome = outcome?;
        for parcel in outcome.exits.values().chain(outcome.gradients.values()) {
            parcel.hand_out(&accelerators.layer)?;
        }
        Ok(Stepped {
            outcome,
            left,
            epoch,
        })
    }

    /// The step by the devices' own clocks, where they have any.
    pub(super) fn times(&self, stepped: &Stepped) -> Result<Option<DeviceTimes>, TorchError> {
        let Some(accelerators) = &self.accelerators else {
            return Ok(None);
        };
        device_times(&accelerators.layer, &accelerators.places, stepped)
    }
}

/// Nothing that a stage did.
fn outside(error: TorchError) -> EngineError {
    EngineError::Caller {
        source: error.into(),
    }
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
