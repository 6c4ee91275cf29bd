//! What can be set, and its names.

/// What can be set about a pipeline, and about its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Setting {
    /// The model: its layers, their names and skips.
    Model,
    /// The devices.
    Devices,
    /// Copies of the pipeline.
    Replicas,
    /// Whether replicas share the optimizer's state.
    ShardOptimizer,
    /// Steps that each replica does alone.
    LocalSteps,
    /// That steps in a row have no barrier between them.
    StepsInARow,
    /// How replicas that train alone are brought together.
    Outer,
    /// Micro-batches of a mini-batch.
    MicroBatches,
    /// Leaves of the tree in which gradients are summed.
    Tree,
    /// Stages of each device.
    Chunks,
    /// Layers of each stage.
    Balance,
    /// The schedule.
    Schedule,
    /// What is computed again rather than kept.
    Recompute,
    /// The type of numbers.
    Precision,
    /// Whose kernels compute on the CPU.
    Kernels,
    /// The loss scale of fp16.
    LossScale,
    /// Intra-op threads of a stage.
    ThreadsPerStage,
    /// For how long a stage is waited for.
    Patience,
    /// The most that CUDA devices may hold.
    MemoryLimits,
    /// Stages that keep activations in the host's memory.
    Offload,
    /// Whether passes are replayed as CUDA graphs.
    CudaGraphs,
    /// Whether only deterministic operators are used.
    Deterministic,
    /// Whether products are rounded to TF32.
    Tf32,
    /// Where initial values and random layers get their numbers from.
    Seed,
    /// What stands in for accelerators.
    Recorder,
    /// Parameters that are the same one.
    Ties,
    /// Values of parameters and buffers that are loaded.
    Weights,
    /// The optimizer's numbers.
    Optimizer,
    /// The learning rates.
    LearningRates,
    /// The largest norm of gradients.
    MaxNorm,
    /// The loss function.
    Loss,
    /// What a sample or a batch has.
    Batch,
    /// Sizes of micro-batches that a profile is made for.
    Sizes,
    /// The processes of a pipeline.
    World,
}

impl Setting {
    /// The method that sets it, of [`PipelineBuilder`](crate::PipelineBuilder) where it is
    /// about a pipeline.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Devices => "devices",
            Self::Replicas => "replicas",
            Self::ShardOptimizer => "shard_optimizer",
            Self::LocalSteps => "local_steps",
            Self::StepsInARow => "StepsInARow::required",
            Self::Outer => "outer",
            Self::MicroBatches => "micro_batches",
            Self::Tree => "tree",
            Self::Chunks => "chunks",
            Self::Balance => "balance",
            Self::Schedule => "schedule",
            Self::Recompute => "recompute",
            Self::Precision => "precision",
            Self::Kernels => "kernels",
            Self::LossScale => "loss_scale",
            Self::ThreadsPerStage => "threads_per_stage",
            Self::Patience => "patience",
            Self::MemoryLimits => "memory_limits",
            Self::Offload => "offload",
            Self::CudaGraphs => "cuda_graphs",
            Self::Deterministic => "deterministic",
            Self::Tf32 => "tf32",
            Self::Seed => "seed",
            Self::Recorder => "record_streams",
            Self::Ties => "tie",
            Self::Weights => "load",
            Self::Optimizer => "optimizer",
            Self::LearningRates => "lr_schedule",
            Self::MaxNorm => "max_norm",
            Self::Loss => "loss",
            Self::Batch => "batch",
            Self::Sizes => "sizes",
            Self::World => "world",
        }
    }

    /// What it is to have at least one of.
    pub(super) const fn none(self) -> &'static str {
        match self {
            Self::Model => "the model has no layers",
            Self::Devices => "no devices: at least one is needed",
            Self::Replicas => "0 replicas: one pipeline is 1",
            Self::MicroBatches => "0 micro-batches: a mini-batch is at least one",
            Self::Chunks => "0 chunks: a device has at least one stage",
            Self::ThreadsPerStage => "0 threads per stage: a stage needs at least one",
            Self::Patience => "a patience of 0: every action takes some time",
            Self::LossScale => "the loss scale's growth interval is 0: it is at least 1 step",
            _ => "there is none of it, and at least one is needed",
        }
    }
}
