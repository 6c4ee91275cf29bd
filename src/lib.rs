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
//! | `checkpoint` | [`checkpoint`]: saving and resuming | `torch` |
//! | `data` | [`data`]: sources, data sets, the loader | `torch` |
//! | `images` | folders of JPEG and PNG images for [`data`] | `data` |
//! | `tokenizers` | a Hugging Face `tokenizer.json` for [`data`] | `data` |
//! | `models` | [`models`]: the zoo, Hugging Face's folders, exported programs | `torch` |
//! | `train` | [`train`]: whole runs, with a run folder and [`metrics`] | `checkpoint`, `data` |
//! | `decide` | the verbs `launch`, `plan`, `plot`, `schedule`, `simulate`, `completions`, `man` of the command | nothing |
//! | `png` | `plot -o FILE.png` | `decide` |
//! | `cli` | the whole command, [`cli`] | all but `png` |
//!
//! Without any of them there are the [`engine`] over any stage type and the [`partitioner`].
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]
// They panic where the stream cannot be written to: `cli` has functions that do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
// What one part of the crate has for another one is unused where the other is left out. With
// all of them, which is the default, nothing may be.
#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports))]

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "decide")]
pub mod decide;
mod files;
#[cfg(feature = "train")]
pub mod metrics;

#[cfg(feature = "checkpoint")]
pub mod checkpoint;
#[cfg(feature = "data")]
pub mod data;
#[cfg(feature = "torch")]
mod error;
#[cfg(feature = "torch")]
mod fail_point;
#[cfg(feature = "models")]
pub mod models;
#[cfg(feature = "torch")]
mod optim;
#[cfg(feature = "torch")]
mod pipeline;
#[cfg(feature = "torch")]
mod profile;
#[cfg(feature = "torch")]
mod torch;
#[cfg(feature = "train")]
pub mod train;
#[cfg(feature = "torch")]
pub mod world;

pub use gpipe_engine as engine;
pub use gpipe_partitioner as partitioner;

#[cfg(feature = "torch")]
pub use {
    ::{ndarray, tch},
    error::{Error, Setting, SettingsError, SettingsRule, StageCount},
    optim::{LrKind, LrSchedule, Optimizer},
    pipeline::{
        GradNorm, LossScale, MemoryReport, MemoryUse, Pipeline, PipelineBuilder, StepInARow,
        StepNumbers, StepReport, StepsInARow,
    },
    profile::{
        Doubt, LayerSpread, MeasuredLink, ProfileOptions, ProfileProgress, Profiled, Sample,
        profile, profile_watched,
    },
    torch::{
        Adam, AdamW, BatchError, Context, CudaDevice, CudaReport, DeviceLost, GatheredParts,
        GraphUse, IntoLoss, KernelScope, Kernels, Layer, Loss, LossFn, NonFinite, OptimizerKind,
        OutOfMemory, Precision, Recompute, Sequential, Sgd, StepState, TorchError, Values,
        Variable, cuda_available, intra_op_threads, layers, libtorch_version, memory, on_values,
        parse_devices, streams,
    },
};

/// The README's example is compiled and run with the other doc tests.
#[cfg(all(doctest, feature = "torch"))]
#[doc = include_str!("../README.md")]
struct Readme;
