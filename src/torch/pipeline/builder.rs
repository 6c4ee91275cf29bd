//! Settings of a pipeline.

mod build;
mod check;
mod devices;
mod engine;
mod replicas;

use std::sync::Arc;
use std::time::Duration;

use gpipe_partitioner::{Bytes, CheckedSchedule, Plan, ScheduleError, ScheduleKind};
use tch::Device;

use super::loss_scale::LossScale;
use super::programs::Source;
use crate::error::Error;
use crate::world::World;
use crate::{Kernels, NonFinite, OuterStep, Precision, Recompute, Sequential};
pub(crate) use check::check_model;
use devices::Limit;
pub(in crate::pipeline) use engine::check_names;

/// Settings of a [`Pipeline`](crate::Pipeline); [`PipelineBuilder::build`] checks them together.
#[derive(Debug, Clone)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a setting of its own"
)]
pub struct PipelineBuilder {
    model: Sequential,
    devices: Vec<Device>,
    replicas: usize,
    shard_optimizer: bool,
    local_steps: Option<usize>,
    outer: OuterStep,
    /// Micro-batches of the mini-batch; `None` if a custom schedule fixes them per replica.
    micro_batches: Option<usize>,
    tree: usize,
    chunks: Option<usize>,
    balance: Option<Vec<usize>>,
    schedule: Source,
    recompute: Recompute,
    precision: Precision,
    kernels: Kernels,
    loss_scale: LossScale,
    non_finite: NonFinite,
    measure_memory: bool,
    seed: u64,
    threads_per_stage: Option<usize>,
    patience: Option<Duration>,
    memory_limit: Option<Limit>,
    numbers: Option<(bool, bool)>,
    forbid_host_waits: bool,
    offload: Vec<usize>,
    offload_at_least: Bytes,
    cuda_graphs: bool,
    world: Option<Arc<World>>,
    /// Devices of all processes, once known.
    device_count: Option<usize>,
}

impl PipelineBuilder {
    pub(super) fn new(model: Sequential) -> Self {
        Self {
            model,
            devices: vec![Device::Cpu],
            replicas: 1,
            shard_optimizer: false,
            local_steps: None,
            outer: OuterStep {
                learning_rate: 0.7,
                momentum: 0.9,
            },
            micro_batches: None,
            tree: 1,
            chunks: None,
            balance: None,
            schedule: Source::Kind(ScheduleKind::OneFOneB),
            recompute: Recompute::Never,
            precision: Precision::F32,
            kernels: Kernels::Libtorch,
            loss_scale: LossScale::default(),
            non_finite: NonFinite::Allow,
            measure_memory: false,
            seed: 0,
            threads_per_stage: None,
            patience: None,
            memory_limit: None,
            numbers: None,
            forbid_host_waits: false,
            offload: Vec::new(),
            offload_at_least: Bytes(256 << 10),
            cuda_graphs: false,
            world: None,
            device_count: None,
        }
    }

    /// Sets the devices, one thread each; they may repeat. One CPU device by default. With d
    /// [`replicas`](Self::replicas), lists the devices of all of them: device s of replica r is
    /// number s·d + r.
    #[must_use]
    pub fn devices(mut self, devices: &[Device]) -> Self {
        self.devices = devices.to_vec();
        self
    }

    /// Sets the micro-batches of a mini-batch, over all replicas; 1 by default.
    #[must_use]
    pub fn micro_batches(mut self, micro_batches: usize) -> Self {
        self.micro_batches = Some(micro_batches);
        self
    }

    /// Sets the stages per device (virtual stages), which the schedule places; by default 2 for
    /// schedules that support several, else 1.
    #[must_use]
    pub fn chunks(mut self, chunks: usize) -> Self {
        self.chunks = Some(chunks);
        self
    }

    /// Sets the layers of each stage, devices times chunks of them; by default the cut that
    /// minimizes the parameter bytes of the largest stage.
    #[must_use]
    pub fn balance(mut self, layers_per_stage: &[usize]) -> Self {
        self.balance = Some(layers_per_stage.to_vec());
        self
    }

    /// Sets the schedule; 1F1B by default. It changes speed and memory, never numbers.
    ///
    /// [`ScheduleKind::Auto`] is first computed for equal times, and after a full step has been
    /// measured, for the times of that step.
    #[must_use]
    pub fn schedule(mut self, schedule: ScheduleKind) -> Self {
        self.schedule = Source::Kind(schedule);
        self
    }

    /// Sets a custom schedule, or one from a file. It fixes the number of stages, their devices and
    /// the number of micro-batches: batches must have at least as many samples. With
    /// [`replicas`](Self::replicas) each replica runs this schedule, and batches have as many
    /// micro-batches for each.
    ///
    /// If it accumulates gradients in another order than that of the micro-batches, early ones wait
    /// for their turn (one set of gradients each), so that the sums are the same.
    #[must_use]
    pub fn custom_schedule(mut self, schedule: CheckedSchedule) -> Self {
        self.micro_batches = None;
        self.schedule = Source::Fixed(schedule);
        self
    }

    /// Sets what is recomputed in the backward instead of kept; nothing by default.
    #[must_use]
    pub fn recompute(mut self, recompute: Recompute) -> Self {
        self.recompute = recompute;
        self
    }

    /// Applies a plan: balance, chunks, schedule, micro-batches, recompute, offload, CUDA graphs
    /// and replicas, with at least one leaf of the [`tree`](Self::tree) per replica. The devices
    /// must be set as well, as many as the plan has for all replicas.
    ///
    /// # Errors
    /// The plan's schedule does not exist for its own numbers.
    pub fn plan(mut self, plan: &Plan) -> Result<Self, Error> {
        self.balance = Some(plan.partition.balance());
        self.chunks = Some(plan.chunks);
        self.micro_batches = Some(plan.micro_batches);
        self.replicas = plan.replicas;
        self.tree = self.tree.max(plan.replicas);
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

    /// Sets the number type in which layers and the loss function compute; single precision by
    /// default. Parameters and gradients stay in single precision, and inference outputs are
    /// converted to it.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Sets the library whose kernels compute products and convolutions on CPU devices; libtorch's
    /// own choice by default, with the bits of plain libtorch. oneDNN gives other bits, again the
    /// same for every cut, schedule, recomputation and number of processes.
    #[must_use]
    pub fn kernels(mut self, kernels: Kernels) -> Self {
        self.kernels = kernels;
        self
    }

    /// Sets how gradients are kept in the range of [`Precision::Fp16`]; ignored for other
    /// precisions.
    #[must_use]
    pub fn loss_scale(mut self, loss_scale: LossScale) -> Self {
        self.loss_scale = loss_scale;
        self
    }

    /// Sets the treatment of a step that contains NaN or infinity; allowed by default.
    #[must_use]
    pub fn on_non_finite(mut self, non_finite: NonFinite) -> Self {
        self.non_finite = non_finite;
        self
    }

    /// Sets whether [`StepReport::memory`](crate::StepReport::memory) reports activation memory;
    /// off by default. On the CPU the whole process then counts its tensors (see
    /// [`memory`](crate::memory)), at almost no cost. On a CUDA device each action resets the
    /// allocator's peak.
    #[must_use]
    pub fn measure_memory(mut self, measure: bool) -> Self {
        self.measure_memory = measure;
        self
    }

    /// Sets the seed of initial values and random layers; 0 by default.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the intra-op threads of each device's thread; by default the CPU devices share the
    /// cores evenly. The results of some kernels depend on it in the last bits.
    #[must_use]
    pub fn threads_per_stage(mut self, threads: usize) -> Self {
        self.threads_per_stage = Some(threads);
        self
    }

    /// For how long a stage may be in one action (or in one update, or another call of the
    /// pipeline) before the caller stops waiting for it and gets
    /// [`EngineError::Stalled`](gpipe_engine::EngineError::Stalled), which names device, stage,
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
    /// [`Pipeline::load`](crate::Pipeline::load)): their error names the device and what it has not come to.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Spreads the pipeline over the processes of a world, each of which builds the same model
    /// with the same settings and makes the same calls in the same order
    /// (*SPMD*). [`devices`](Self::devices) are those of each process, in the order of ranks; each
    /// process has the stages of its own. One pipeline at a time.
    ///
    /// Every process gives all of a batch; where neither the first nor the last stage is, only
    /// the number of samples matters. Every process gets the same loss, norm and verdict.
    /// [`Pipeline::parameters`](crate::Pipeline::parameters) and [`Pipeline::buffers`](crate::Pipeline::buffers) are those of the stages that are here.
    ///
    /// A call that fails in one process fails in all ([`EngineError::Elsewhere`]
    /// names the rank), and the pipeline works on. Where a process is lost
    /// ([`EngineError::Lost`]), nothing goes on: a launcher starts all anew, from a checkpoint.
    ///
    /// *Determinism*: the same bits as in one process.
    ///
    /// [`EngineError::Elsewhere`]: gpipe_engine::EngineError::Elsewhere
    /// [`EngineError::Lost`]: gpipe_engine::EngineError::Lost
    #[doc(alias = "rank")]
    #[doc(alias = "distributed")]
    #[must_use]
    pub fn world(mut self, world: &Arc<World>) -> Self {
        self.world = (world.size() > 1).then(|| Arc::clone(world));
        self
    }
}
