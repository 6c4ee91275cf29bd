//! Stages over libtorch: layers, autograd, random numbers, devices.

mod device;
mod error;
mod ffi;
mod layer;
pub mod layers;
mod loss;
mod optim;
mod rng;
mod sequential;
mod stage;
mod step;
mod values;

pub use device::{cuda_available, parse_device};
pub use error::TorchError;
pub use layer::{Context, Layer};
pub use loss::{IntoLoss, Loss, LossFn, on_values};
pub use optim::{AdamW, OptimizerKind, Sgd};
pub use sequential::Sequential;
pub use values::Values;

pub(crate) use device::{prepare, prepare_thread};
pub(crate) use rng::{INCREMENT, mix};
pub(crate) use stage::TorchStage;
pub(crate) use step::{Mode, StepSettings};

use error::panic_message;

/// Runs the user's code; a panic (tch panics where libtorch refuses) is an error like any other.
fn caught<T>(body: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))
        .unwrap_or_else(|payload| Err(anyhow::anyhow!("panicked: {}", panic_message(&*payload))))
}

/// The version of the libtorch that is loaded, such as `2.11.0`.
pub fn libtorch_version() -> String {
    ffi::version()
}

/// Intra-op threads of the calling thread.
///
/// # Errors
/// libtorch refuses.
pub fn intra_op_threads() -> Result<usize, TorchError> {
    ffi::threads()
}
