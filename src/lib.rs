//! Pipeline model parallelism for libtorch.
//!
//! A [`Sequential`] of layer builders is cut into stages, each on its own device
//! with a thread of its own; every mini-batch is split into micro-batches that
//! stream through the stages; gradients accumulate synchronously, so the result
//! is the one that a single device would have given (GPipe, Huang et al. 2019).
//! Start at [`Pipeline`].
//!
//! # Features
//! By default all of it is there. A program that only wants the pipeline takes
//! `default-features = false, features = ["torch"]`, and what else it uses:
//!
//! | feature | gives | needs |
//! |---|---|---|
//! | `torch` | [`Pipeline`], its builder, layers, optimizers, [`profile()`], [`world`] | libtorch |
//! | `train` | [`data`], [`models`], [`checkpoint`], [`metrics`], and [`train`]: whole runs | `torch` |
//! | `decide` | the verbs `launch`, `plan`, `plot`, `schedule`, `simulate`, `completions`, `man` of the command | nothing |
//! | `cli` | the whole command, [`cli`] | `decide`, `train` |
//! | `png` | `plot -o FILE.png` | `decide` |
//! | `parquet`, `object-store` | more sources of [`data`] | `train` |
//!
//! Without any of them there are the [`engine`] over any stage type and the [`partitioner`].

#[cfg(feature = "cli")]
pub use gpipe_cli as cli;
#[cfg(feature = "decide")]
pub use gpipe_decide as decide;
pub use gpipe_engine as engine;
pub use gpipe_partitioner as partitioner;

#[cfg(feature = "torch")]
pub use {
    ::{ndarray, tch},
    gpipe_torch::{
        Adam, AdamW, BatchError, Context, CudaDevice, CudaReport, DeviceLost, Doubt, Error,
        GatheredParts, GradNorm, GraphUse, IntoLoss, KernelScope, Kernels, Layer, LayerSpread,
        Loss, LossFn, LossScale, LrKind, LrSchedule, MeasuredLink, MemoryReport, MemoryUse,
        NonFinite, Optimizer, OptimizerKind, OutOfMemory, Pipeline, PipelineBuilder, Precision,
        ProfileOptions, ProfileProgress, Profiled, Recompute, Sample, Sequential, Setting,
        SettingsError, SettingsRule, Sgd, StageCount, StepInARow, StepNumbers, StepReport,
        StepState, StepsInARow, TorchError, Values, Variable, cuda_available, intra_op_threads,
        layers, libtorch_version, memory, on_values, parse_devices, profile, profile_watched,
        streams, world,
    },
};
#[cfg(feature = "train")]
pub use {
    gpipe_data as data, gpipe_models as models, gpipe_train as train,
    gpipe_train::{checkpoint, metrics},
};

/// Compiles and runs the README's example with the doc tests.
#[cfg(all(doctest, feature = "torch"))]
#[doc = include_str!("../README.md")]
struct Readme;
