//! What can be chosen about a pipeline.

mod check;
mod devices;
mod engine;

use std::sync::Arc;
use std::time::Duration;

use gpipe_partitioner::{
    Bytes, CheckedSchedule, Partition, Plan, ScheduleError, ScheduleKind, StageId,
};
use tch::Device;

use super::Pipeline;
use super::loss_scale::{LossScale, Scaler};
use super::programs::{Programs, Source};
use super::ties::Ties;
use super::wiring::Wiring;
use crate::error::{Error, Setting, SettingsError};
use crate::torch::streams::Recorder;
use crate::torch::{self, NonFinite, Precision, Recompute, Sequential, Skip};
pub(crate) use check::check_model;
use devices::Limit;
use engine::check_names;

/// Settings of a [`Pipeline`]; [`PipelineBuilder::build`] checks them together.
#[derive(Debug, Clone)]
pub struct PipelineBuilder {
    model: Sequential,
    devices: Vec<Device>,
    micro_batches: usize,
    tree: usize,
    chunks: Option<usize>,
    balance: Option<Vec<usize>>,
    schedule: Source,
    recompute: Recompute,
    precision: Precision,
    loss_scale: LossScale,
    non_finite: NonFinite,
    measure_memory: bool,
    seed: u64,
    threads_per_stage: Option<usize>,
    patience: Option<Duration>,
    recorder: Option<Recorder>,
    memory_limit: Option<Limit>,
    numbers: Option<(bool, bool)>,
    forbid_host_waits: bool,
    offload: Vec<usize>,
    offload_at_least: Bytes,
    cuda_graphs: bool,
}

impl PipelineBuilder {
    pub(super) fn new(model: Sequential) -> Self {
        Self {
            model,
            devices: vec![Device::Cpu],
            micro_batches: 1,
            tree: 1,
            chunks: None,
            balance: None,
            schedule: Source::Kind(ScheduleKind::OneFOneB),
            recompute: Recompute::Never,
            precision: Precision::F32,
            loss_scale: LossScale::default(),
            non_finite: NonFinite::Allow,
            measure_memory: false,
            seed: 0,
            threads_per_stage: None,
            patience: None,
            recorder: None,
            memory_limit: None,
            numbers: None,
            forbid_host_waits: false,
            offload: Vec::new(),
            offload_at_least: Bytes(256 << 10),
            cuda_graphs: false,
        }
    }

    /// The devices, a thread each; they may repeat. One CPU device by default.
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

    /// Has each parameter's gradient summed over micro-batches in a tree of `leaves` leaves, a
    /// power of two; 1 by default, which is the serial sum ((g0 + g1) + g2) + ….
    ///
    /// Leaf j has the micro-batches ⌊jM/k⌋ to ⌊(j+1)M/k⌋ - 1 of the step's M, k being the number
    /// of leaves, and sums them serially. The leaves' sums are added in a balanced binary tree,
    /// the earlier one on the left. For M = 6 and k = 4:
    ///
    /// ```text
    /// ((g0 + (g1 + g2)) + (g3 + (g4 + g5)))
    /// ```
    ///
    /// A gradient that is absent from a leaf (the leaf has no micro-batches, or none that uses
    /// the parameter) is left out of the sum: no zero takes its place. Where a parameter is tied
    /// to others, each place has a tree, and the places are added up behind them, as ever.
    ///
    /// *Determinism*: the bits of the sum depend on the mini-batch, M and k, not on cut,
    /// schedule, recompute, offload or CUDA graphs. The tree is there for replicas of the
    /// pipeline (data parallelism): each can sum a subtree of its own, and the subtrees' sums are
    /// added up, so that for one k the bits do not depend on how many replicas there are
    /// either. A serial sum cannot be shared so.
    ///
    /// *Memory*: a step makes log2(k) + 1 sets of a stage's gradients at most that are there at a
    /// time, the one of the leaf that is being summed included; with fewer micro-batches than
    /// leaves, no more than ⌈log2(M)⌉ + 1. A set is left when the step ends.
    #[doc(alias = "data parallel")]
    #[doc(alias = "gradient accumulation")]
    #[must_use]
    pub fn tree(mut self, leaves: usize) -> Self {
        self.tree = leaves;
        self
    }

    /// Stages of each device (virtual stages), which the schedule places; by default
    /// 2 for schedules that have several, else 1.
    #[must_use]
    pub fn chunks(mut self, chunks: usize) -> Self {
        self.chunks = Some(chunks);
        self
    }

    /// Layers of each stage, devices times chunks of them; by default the cut that
    /// makes the stage with the most parameter bytes smallest.
    #[must_use]
    pub fn balance(mut self, layers_per_stage: &[usize]) -> Self {
        self.balance = Some(layers_per_stage.to_vec());
        self
    }

    /// The schedule; 1F1B by default. It changes speed and memory, never numbers.
    ///
    /// [`ScheduleKind::Auto`] is computed for equal times at first, and once a full
    /// step has been measured for the times of that step.
    #[must_use]
    pub fn schedule(mut self, schedule: ScheduleKind) -> Self {
        self.schedule = Source::Kind(schedule);
        self
    }

    /// A schedule of one's own, or one from a file; it says how many stages there
    /// are, which device has which, and for how many micro-batches it is: batches
    /// must have at least that many samples.
    ///
    /// Where it adds up gradients in another order than that of the micro-batches,
    /// those that come early wait for their turn (a set of gradients each), so that
    /// the sums are the same.
    #[must_use]
    pub fn custom_schedule(mut self, schedule: CheckedSchedule) -> Self {
        self.micro_batches = schedule.schedule().micro_batches();
        self.schedule = Source::Fixed(schedule);
        self
    }

    /// What is not kept for the backward but computed again; nothing by default.
    #[must_use]
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = recompute;
        self
    }

    /// Everything that a plan says: balance, chunks, schedule, micro-batches, recompute,
    /// offload and CUDA graphs. The devices are still to be named, as many as the plan has.
    ///
    /// # Errors
    /// The plan's schedule does not exist for its own numbers.
    pub fn plan(mut self, plan: &Plan) -> Result<Self, Error> {
        self.balance = Some(plan.partition.balance());
        self.chunks = Some(plan.chunks);
        self.micro_batches = plan.micro_batches;
        self.recompute = Recompute::Stages(plan.recompute.clone());
        let stages = plan.offload.iter().enumerate();
        self.offload = stages
            .filter(|(_, away)| **away)
            .map(|(stage, _)| stage)
            .collect();
        self.cuda_graphs = plan.cuda_graphs;
        self.schedule = match &plan.computed {
            Some(schedule) => {
                let checked = schedule.clone().check().map_err(ScheduleError::from)?;
                Source::Fixed(checked)
            }
            None => Source::Kind(plan.schedule),
        };
        Ok(self)
    }

    /// In which type of numbers layers and the loss function compute; single precision
    /// by default. Parameters and gradients stay single precision, and what inference
    /// gives is converted to it.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// How gradients are kept in the range of [`Precision::Fp16`]; of no consequence for
    /// other precisions.
    #[must_use]
    pub fn loss_scale(mut self, loss_scale: LossScale) -> Self {
        self.loss_scale = loss_scale;
        self
    }

    /// What becomes of a step with NaN or infinity in it; allowed by default.
    #[must_use]
    pub fn on_non_finite(mut self, non_finite: NonFinite) -> Self {
        self.non_finite = non_finite;
        self
    }

    /// Whether [`StepReport::memory`](crate::StepReport::memory) tells what the
    /// activations took; off by default. On the CPU the whole process counts its
    /// tensors from then on (see [`memory`](crate::memory)), which costs next to
    /// nothing. On a CUDA device each action resets the peak that its allocator keeps.
    #[must_use]
    pub fn measure_memory(mut self, measure: bool) -> Self {
        self.measure_memory = measure;
        self
    }

    /// Where initial values and random layers get their numbers from; 0 by default.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Intra-op threads of each device's thread; by default the CPU devices share
    /// the cores evenly. The results of some kernels depend on it in the last bits.
    #[must_use]
    pub fn threads_per_stage(mut self, threads: usize) -> Self {
        self.threads_per_stage = Some(threads);
        self
    }

    /// For how long a stage may be in one action (or in one update, or another call of the
    /// pipeline) before the caller stops waiting for it and gets
    /// [`EngineError::Stalled`](crate::engine::EngineError::Stalled), which names device, stage,
    /// layer, micro-batch and action; without end by default.
    ///
    /// A thread cannot be taken out of a layer that blocks. After a training step or an
    /// inference the pipeline can be used again once the layer has come back: the next call waits
    /// for it as long once more, and undoes the step. Dropping the pipeline does not wait.
    /// Of stages it is the time on the host that counts, and layers that are being built are
    /// not watched.
    ///
    /// The calling thread's own waits for asynchronous devices end with it as well
    /// ([`StepReport::read`](crate::StepReport::read), [`GradNorm::read`](crate::GradNorm::read),
    /// [`Pipeline::load`]): their error names the device and what it has not come to.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Cuts the model and builds each stage's layers on its device.
    ///
    /// # Errors
    /// [`Error::Settings`], [`Error::Partition`] and [`Error::Schedule`] where the
    /// settings do not fit each other, the model or the machine, [`Error::Build`]
    /// where a layer cannot be built.
    pub fn build(self) -> Result<Pipeline, Error> {
        let shape = self.shape()?;
        self.check_fit(shape)?;
        let skips: Arc<[Skip]> = check_model(&self.model)?.into();
        let scaled = self.precision == Precision::Fp16;
        let scaler = scaled.then(|| Scaler::new(self.loss_scale)).transpose()?;
        let partition = self.partition(shape.stages())?;
        torch::prepare(&self.devices)
            .map_err(|why| SettingsError::unavailable(Setting::Devices, &why))?;
        torch::keep_memory(&self.devices);
        self.limit_memory()?;
        if let Some((tf32, deterministic)) = self.numbers {
            torch::set_numbers(tf32, deterministic)?;
        }
        let recomputing = (0..shape.stages())
            .map(|stage| {
                self.recompute
                    .touches(stage, &partition.range(StageId(stage)))
            })
            .collect();
        let programs = Programs::new(
            self.schedule.clone(),
            shape,
            Wiring::new(&partition, &skips),
            self.recompute.clone(),
            recomputing,
        )?;
        let devices: Vec<Device> = programs
            .placement()
            .iter()
            .map(|device| self.devices[device.index()])
            .collect();
        let mut engine = self.engine(&partition, &programs, &skips)?;
        check_names(&mut engine)?;
        let ties = Ties::join(&self.model, &partition, &mut engine)?;
        let mut pipe = Pipeline {
            engine,
            devices,
            partition,
            programs,
            ties,
            precision: self.precision,
            scaler,
            non_finite: self.non_finite,
            measures_memory: self.measure_memory,
            seed: self.seed,
            steps: 0,
        };
        pipe.scale_by_device()?;
        Ok(pipe)
    }

    /// The layers of each stage, of settings that fit each other.
    fn partition(&self, stages: usize) -> Result<Partition, Error> {
        let layers = self.model.len();
        match &self.balance {
            Some(balance) => Ok(Partition::from_balance(layers, balance)?),
            None if stages == 1 || stages >= layers => Ok(Partition::uniform(layers, stages)?),
            None => {
                let bytes = self.model.parameter_bytes().map_err(Error::Build)?;
                Ok(Partition::by_weight(&bytes, stages)?)
            }
        }
    }
}
