//! What can be chosen about a pipeline.

use std::thread;

use gpipe_partitioner::{Partition, ScheduleKind, StageId};
use tch::Device;

use super::Pipeline;
use super::programs::Programs;
use crate::engine::Engine;
use crate::error::Error;
use crate::torch::{self, Sequential, TorchStage};

/// The schedules that a stage over libtorch can run.
pub(crate) const RUNNABLE: [ScheduleKind; 2] = [ScheduleKind::GPipe, ScheduleKind::OneFOneB];

/// Settings of a [`Pipeline`]; [`PipelineBuilder::build`] checks them together.
#[derive(Debug, Clone)]
pub struct PipelineBuilder {
    model: Sequential,
    devices: Vec<Device>,
    micro_batches: usize,
    balance: Option<Vec<usize>>,
    schedule: ScheduleKind,
    seed: u64,
    threads_per_stage: Option<usize>,
}

impl PipelineBuilder {
    pub(super) fn new(model: Sequential) -> Self {
        Self {
            model,
            devices: vec![Device::Cpu],
            micro_batches: 1,
            balance: None,
            schedule: ScheduleKind::OneFOneB,
            seed: 0,
            threads_per_stage: None,
        }
    }

    /// One stage for each device; devices may repeat. One CPU stage by default.
    #[must_use]
    pub fn devices(mut self, devices: &[Device]) -> Self {
        self.devices = devices.to_vec();
        self
    }

    /// Micro-batches of a mini-batch; 1 by default.
    #[must_use]
    pub fn micro_batches(mut self, micro_batches: usize) -> Self {
        self.micro_batches = micro_batches;
        self
    }

    /// Layers of each stage; by default the cut that makes the stage with the
    /// most parameter bytes smallest.
    #[must_use]
    pub fn balance(mut self, layers_per_stage: &[usize]) -> Self {
        self.balance = Some(layers_per_stage.to_vec());
        self
    }

    /// The schedule; 1F1B by default. It changes speed and memory, never numbers.
    #[must_use]
    pub fn schedule(mut self, schedule: ScheduleKind) -> Self {
        self.schedule = schedule;
        self
    }

    /// Where initial values and random layers get their numbers from; 0 by default.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Intra-op threads of each stage; by default the CPU stages share the cores
    /// evenly. The results of some kernels depend on it in the last bits.
    #[must_use]
    pub fn threads_per_stage(mut self, threads: usize) -> Self {
        self.threads_per_stage = Some(threads);
        self
    }

    /// Cuts the model and builds each stage's layers on its device.
    ///
    /// # Errors
    /// [`Error::Settings`] and [`Error::Partition`] where the settings do not fit
    /// the model or the machine, [`Error::Build`] where a layer cannot be built.
    pub fn build(self) -> Result<Pipeline, Error> {
        self.check()?;
        let stages = self.devices.len();
        torch::prepare(&self.devices).map_err(|error| Error::Settings(error.to_string()))?;
        let partition = self.partition()?;
        let programs = Programs::new(self.schedule, stages, self.micro_batches)?;
        let engine = self.engine(&partition)?;
        Ok(Pipeline {
            engine,
            devices: self.devices,
            partition,
            programs,
            steps: 0,
        })
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |message: String| Err(Error::Settings(message));
        if self.model.is_empty() {
            return wrong("the model has no layers".to_owned());
        }
        if let Some(name) = self.model.duplicate_name() {
            return wrong(format!(
                "two layers are named `{name}`: names must be unique"
            ));
        }
        if self.devices.is_empty() {
            return wrong("no devices: a pipeline needs at least one".to_owned());
        }
        if self.micro_batches == 0 {
            return wrong("0 micro-batches: a mini-batch is at least one".to_owned());
        }
        if self.threads_per_stage == Some(0) {
            return wrong("0 threads per stage: a stage needs at least one".to_owned());
        }
        if !RUNNABLE.contains(&self.schedule) {
            return wrong(format!(
                "the schedule {} cannot be trained with: {} can",
                self.schedule,
                RUNNABLE.map(|kind| kind.to_string()).join(" and ")
            ));
        }
        Ok(())
    }

    fn partition(&self) -> Result<Partition, Error> {
        let (layers, stages) = (self.model.len(), self.devices.len());
        match &self.balance {
            Some(balance) if balance.len() != stages => Err(Error::Settings(format!(
                "the balance names {} stages, but there are {stages} devices",
                balance.len()
            ))),
            Some(balance) => Ok(Partition::from_balance(layers, balance)?),
            None if stages == 1 || stages >= layers => Ok(Partition::uniform(layers, stages)?),
            None => {
                let bytes = self.model.parameter_bytes().map_err(Error::Build)?;
                Ok(Partition::by_weight(&bytes, stages)?)
            }
        }
    }

    fn engine(&self, partition: &Partition) -> Result<Engine<TorchStage>, Error> {
        let threads = self
            .threads_per_stage
            .unwrap_or_else(|| share_of_cores(&self.devices));
        let stages = self.devices.len();
        let builders = self.devices.iter().enumerate().map(|(number, &device)| {
            let stage = StageId(number);
            let layers = self.model.builders()[partition.range(stage)].to_vec();
            let (seed, ends) = (self.seed, (number == 0, number + 1 == stages));
            let build = move || {
                torch::prepare_thread(device, threads)?;
                Ok(vec![(
                    stage,
                    TorchStage::build(&layers, device, seed, ends)?,
                )])
            };
            Box::new(build)
                as Box<dyn FnOnce() -> anyhow::Result<Vec<(StageId, TorchStage)>> + Send>
        });
        Ok(Engine::new(builders.collect())?)
    }
}

/// Intra-op threads for each stage when the CPU stages share the cores evenly.
fn share_of_cores(devices: &[Device]) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let stages = devices
        .iter()
        .filter(|device| **device == Device::Cpu)
        .count()
        .max(1);
    (cores / stages).max(1)
}
