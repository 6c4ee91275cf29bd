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
//! | `torch` | [`Pipeline`], [`layers`], [`optim`], [`mod@profile`], [`world`] | libtorch |
//! | `train` | [`data`], [`models`], [`checkpoint`], and [`train`]: whole runs | `torch` |
//! | `decide` | the verbs `launch`, `plan`, `plot`, `schedule`, `simulate`, `completions`, `man` of the command | nothing |
//! | `cli` | the whole command, [`cli`] | `decide`, `train` |
//! | `png` | `plot -o FILE.png` | `decide` |
//! | `parquet`, `object-store` | more sources of [`data`] | `train` |
//!
//! Without any of them there is the [`partitioner`].

#[cfg(feature = "cli")]
pub use gpipe_cli as cli;
pub use gpipe_partitioner as partitioner;
#[cfg(feature = "torch")]
pub use {
    ::{ndarray, tch},
    gpipe_torch::{
        Error, Layer, Loss, Optimizer, Pipeline, PipelineBuilder, Sequential, Values, memory, world,
    },
};
#[cfg(feature = "train")]
pub use {
    gpipe_data as data, gpipe_models as models, gpipe_train as train, gpipe_train::checkpoint,
};

/// Devices: whether CUDA can be used, the devices of a list, threads, the loaded libtorch.
#[cfg(feature = "torch")]
pub mod device {
    pub use gpipe_torch::{
        CudaDevice, cuda_available, intra_op_threads, libtorch_version, parse_devices,
    };
}

/// Errors and their parts. [`Error`] is the error of a step.
#[cfg(feature = "torch")]
pub mod error {
    pub use gpipe_torch::{
        BatchError, DeviceLost, NonFinite, OutOfMemory, Setting, SettingsError, SettingsRule,
        StageCount, TorchError,
    };
}

/// Layers for [`Sequential`], and what a layer of your own needs.
#[cfg(feature = "torch")]
pub mod layers {
    pub use gpipe_torch::layers::*;
    pub use gpipe_torch::{Context, GatheredParts, StepState, Variable};
}

/// Update rules and learning-rate schedules for [`Optimizer`].
#[cfg(feature = "torch")]
pub mod optim {
    pub use gpipe_torch::{Adam, AdamW, LrKind, LrSchedule, OptimizerKind, Sgd};
}

/// Measured costs of layers, the input of [`partitioner`].
#[cfg(feature = "torch")]
pub mod profile {
    pub use gpipe_torch::{
        Doubt, LayerSpread, MeasuredLink, ProfileOptions, ProfileProgress, Profiled, Sample,
        profile, profile_watched,
    };
}

/// Results of steps: losses, times, memory, the norm of gradients.
#[cfg(feature = "torch")]
pub mod report {
    pub use gpipe_torch::{
        CudaReport, GradNorm, GraphUse, MemoryReport, MemoryUse, StepNumbers, StepReport,
    };
}

/// Values for the options of [`PipelineBuilder`], and loss functions.
#[cfg(feature = "torch")]
pub mod settings {
    pub use gpipe_torch::{IntoLoss, Kernels, LossFn, LossScale, Precision, Recompute, on_values};
}

// For the tests and the benchmarks of this repository: no part of the interface.
#[cfg(feature = "decide")]
#[doc(hidden)]
pub use gpipe_decide as decide;
#[doc(hidden)]
pub use gpipe_engine as engine;
#[cfg(feature = "torch")]
#[doc(hidden)]
pub use gpipe_torch as torch;

/// Compiles and runs the README's example with the doc tests.
#[cfg(all(doctest, feature = "torch"))]
#[doc = include_str!("../README.md")]
struct Readme;
