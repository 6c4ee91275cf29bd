//! Settings and their names.

/// A setting of a pipeline or of its steps.
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
    /// Local steps of each replica between synchronizations.
    LocalSteps,
    /// The outer optimizer, which synchronizes replicas that train locally.
    Outer,
    /// Returns the micro-batches of a mini-batch.
    MicroBatches,
    /// Leaves of the tree in which gradients are summed.
    Tree,
    /// Stages per device.
    Chunks,
    /// Layers of each stage.
    Balance,
    /// The schedule.
    Schedule,
    /// Activations that are recomputed instead of kept.
    Recompute,
    /// The number type.
    Precision,
    /// The library whose kernels compute on the CPU.
    Kernels,
    /// The loss scale of fp16.
    LossScale,
    /// Intra-op threads of a stage.
    ThreadsPerStage,
    /// Longest wait for a stage.
    Patience,
    /// Memory limits of CUDA devices.
    MemoryLimits,
    /// Stages that keep activations in host memory.
    Offload,
    /// Whether passes are replayed as CUDA graphs.
    CudaGraphs,
    /// Whether only deterministic operators are used.
    Deterministic,
    /// Whether matrix products are rounded to TF32.
    Tf32,
    /// The seed of initial values and random layers.
    Seed,
    /// Tied parameters.
    Ties,
    /// Loaded values of parameters and buffers.
    Weights,
    /// The optimizer's hyperparameters.
    Optimizer,
    /// The learning rates.
    LearningRates,
    /// The largest gradient norm.
    MaxNorm,
    /// The loss function.
    Loss,
    /// The contents of a sample or a batch.
    Batch,
    /// Micro-batch sizes to profile.
    Sizes,
    /// The processes of a pipeline.
    World,
}

impl Setting {
    /// Returns the name of the method that sets it; for pipeline settings, that of
    /// [`PipelineBuilder`](crate::PipelineBuilder).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Devices => "devices",
            Self::Replicas => "replicas",
            Self::ShardOptimizer => "shard_optimizer",
            Self::LocalSteps => "local_steps",
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

    /// Returns the message for a count of zero.
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
