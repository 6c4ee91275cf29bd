//! Pipeline model parallelism for libtorch.
//!
//! A [`Sequential`] of layer builders is cut into stages, each on its own device
//! with a thread of its own; every mini-batch is split into micro-batches that
//! stream through the stages; gradients accumulate synchronously, so the result
//! is the one that a single device would have given (GPipe, Huang et al. 2019).
//! Start at [`Pipeline`].
//!
//! Without the feature `torch` only what needs no tensors is here: the
//! [`engine`] over any stage type and the `gpipe_partitioner` crate.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]
// They panic where the stream cannot be written to: `cli` has functions that do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod cli;
pub mod engine;
mod files;
pub mod metrics;
mod panics;

#[cfg(feature = "torch")]
mod batch;
#[cfg(feature = "torch")]
pub mod checkpoint;
#[cfg(feature = "torch")]
pub mod data;
#[cfg(feature = "torch")]
mod error;
#[cfg(feature = "torch")]
pub mod models;
#[cfg(feature = "torch")]
mod optim;
#[cfg(feature = "torch")]
mod others;
#[cfg(feature = "torch")]
mod pipeline;
#[cfg(feature = "torch")]
mod profile;
#[cfg(feature = "torch")]
mod threads;
#[cfg(feature = "torch")]
mod torch;

pub use gpipe_partitioner as partitioner;
#[cfg(feature = "torch")]
pub use tch;

#[cfg(feature = "torch")]
pub use {
    batch::BatchError,
    error::Error,
    optim::{LrKind, LrSchedule, Optimizer},
    pipeline::{
        GradNorm, LossScale, MemoryReport, MemoryUse, Pipeline, PipelineBuilder, StepNumbers,
        StepReport,
    },
    profile::{
        Doubt, LayerSpread, MeasuredLink, ProfileOptions, ProfileProgress, Profiled, Sample,
        profile, profile_watched,
    },
    torch::{
        Adam, AdamW, Context, CudaDevice, CudaReport, DeviceLost, GraphUse, IntoLoss, Layer, Loss,
        LossFn, NonFinite, OptimizerKind, OutOfMemory, Precision, Recompute, Sequential, Sgd,
        StepState, TorchError, Values, Variable, cuda_available, intra_op_threads, layers,
        libtorch_version, memory, on_values, parse_device, streams,
    },
};

/// The README's example is compiled and run with the other doc tests.
#[cfg(all(doctest, feature = "torch"))]
#[doc = include_str!("../README.md")]
struct Readme;
