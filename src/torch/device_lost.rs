//! CUDA devices on which a kernel has failed.

use thiserror::Error;

/// A CUDA device failed in work that was submitted earlier (a class number out of range, say,
/// for which a kernel reads beyond its memory). Such a device answers every later call with an
/// error, for the rest of the process, so that nothing can be undone or used further.
///
/// It is a cause of the [`StageError`](gpipe_engine::StageError) of the step that finds it,
/// which may be later than the step that caused it, and the error of every later call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "a device failed and answers nothing any more: start the process anew (it was first seen in {first}; \
     what caused it may have been told to the device before)"
)]
#[non_exhaustive]
pub struct DeviceLost {
    /// Where it was first detected, and the device's message.
    pub first: String,
}

/// Returns whether an error is CUDA's own, after which a device may be lost. Out of memory is not
/// one.
pub(super) fn is_of_cuda(error: &anyhow::Error) -> bool {
    let says = |words: &str| error.chain().any(|own| own.to_string().contains(words));
    says("CUDA error:") && !says("out of memory")
}
