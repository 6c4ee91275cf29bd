//! Pipeline stages over libtorch, and what drives them: layers, the [`Pipeline`], optimizers,
//! measured profiles, several processes.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod affinity;
pub mod arrays;
pub mod batch;
mod copies;
mod cuda;
mod device;
mod device_lost;
pub mod error;
pub mod fail_point;
mod ffi;
mod gradients;
mod kernels;
mod layer;
pub mod layers;
mod loss;
pub mod memory;
mod optim;
mod out_of_memory;
pub mod pipeline;
mod precision;
pub mod profile;
mod recompute;
mod rng;
mod sequential;
mod sizes;
mod skips;
mod stage;
mod step;
mod step_state;
pub mod streams;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod threads;
mod values;
pub mod wire;
pub mod world;

pub use batch::BatchError;
pub use cuda::{CudaDevice, CudaReport};
pub use device::{cuda_available, parse_devices};
pub use device_lost::DeviceLost;
pub use error::{Error, Setting, SettingsError, SettingsRule, StageCount, TorchError};
pub use kernels::{KernelScope, Kernels};
pub use layer::{Context, Layer};
pub use loss::{IntoLoss, Loss, LossFn, on_values};
pub use optim::{Adam, AdamW, LrKind, LrSchedule, Optimizer, OptimizerKind, Sgd};
pub use out_of_memory::OutOfMemory;
pub use pipeline::{
    GradNorm, LossScale, MemoryReport, MemoryUse, Pipeline, PipelineBuilder, StepNumbers,
    StepReport,
};
pub use precision::Precision;
pub use profile::{
    Doubt, LayerSpread, MeasuredLink, ProfileOptions, ProfileProgress, Profiled, Sample, profile,
    profile_watched,
};
pub use recompute::Recompute;
pub use sequential::Sequential;
pub use sizes::Variable;
pub use step_state::{GatheredParts, StepState};
pub use values::Values;

pub(crate) use affinity::allowed_cores;
pub use device::{SIMULATE_GPUS, cuda_devices_here, simulated_gpus, time_model};
pub use device::{
    cores, device_name, gpus_are_simulated, gpus_take_cpu_time, keep_memory, prepare,
    prepare_thread,
};
pub(crate) use device::{
    device_title, max_concurrent, only_time_passes, share_of_cores, shared_cores, turns,
};
pub use ffi::{Autocast, Given, Number, Operator, RandomScope};
pub(crate) use gradients::{clip_factor, clip_there, total_norm};
pub(crate) use loss::Reduction;
pub(crate) use optim::Groups;
pub use rng::{INCREMENT, mix};
pub use step::NonFinite;

pub(crate) use ffi::copy as copy_tensor;
pub use ffi::end_at_once;
pub(crate) use ffi::{Group as ProcessGroup, Store, Work};
pub use ffi::{Pool, put_row, with_bytes, with_numbers};
pub(crate) use ffi::{Process, SharedFile, SharedMemory, TensorBytes, sleep_at, wake_at};
pub(crate) use ffi::{RawEvent, copy_into, copy_to, copy_to_host, current_stream};
pub(crate) use ffi::{UNIQUE_ID, driver_uuid, nccl_unique_id, nccl_version};
pub(crate) use ffi::{forbid_waits, has_cuda_graphs, set_numbers, tell_ends};
pub(crate) use sequential::{LayerBuilder, bytes as tensor_bytes};
pub(crate) use skips::Skip;
pub use stage::GraphUse;
pub(crate) use stage::{
    Copies, DeviceMeter, Graphing, MemoryLevels, OuterStep, StageSpec, StepMemory, Sums, TorchStage,
};
pub use stage::{Portable, Role};
pub(crate) use step::{Mode, StepSettings};

/// Runs the user's code; a panic (tch panics where libtorch refuses) is an error like any other.
pub fn caught<T>(body: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let result = gpipe_engine::panics::caught(body)
        .unwrap_or_else(|message| Err(anyhow::anyhow!("panicked: {message}")));
    // tch's errors contain libtorch's stack frames.
    result.map_err(|error| match error.downcast::<tch::TchError>() {
        Ok(error) => TorchError::from(error).into(),
        Err(other) => other,
    })
}

/// Runs operators outside of stages. Where one that takes a number as a scalar fails, tch panics
/// instead of returning the error: the scalar's drop comes first, and finds it.
pub fn operators<T, E: Into<TorchError>>(
    body: impl FnOnce() -> Result<T, E>,
) -> Result<T, TorchError> {
    let done = gpipe_engine::panics::caught(|| tch::no_grad(body));
    done.map_err(TorchError::new)?.map_err(Into::into)
}

/// Returns the version of the loaded libtorch, such as `2.11.0`.
pub fn libtorch_version() -> String {
    ffi::version()
}

/// Returns the value of `MKL_CBWR` equivalent to MKL's mode, and whether the environment set it;
/// `None` if libtorch has no MKL.
pub fn mkl_mode() -> Option<(String, bool)> {
    const STRICT: i32 = 0x1_0000;
    let (mode, told) = ffi::mkl_mode()?;
    let branch = match mode & !STRICT {
        0 | 1 => "OFF".to_owned(),
        2 => "AUTO".to_owned(),
        3 => "COMPATIBLE".to_owned(),
        10 => "AVX2".to_owned(),
        12 => "AVX512".to_owned(),
        other => format!("branch {other}"),
    };
    let strict = if mode & STRICT == 0 { "" } else { ",STRICT" };
    Some((format!("{branch}{strict}"), told))
}

/// Intra-op threads of the calling thread.
///
/// # Errors
/// libtorch refuses.
pub fn intra_op_threads() -> Result<usize, TorchError> {
    ffi::threads()
}
