//! A CUDA device that failed in what it was told to do.

use thiserror::Error;

/// A CUDA device failed in something that it had been told to do before (a number of a class
/// that there is not, say, for which a kernel reads beyond its memory). Such a device answers
/// every later call with an error, for the rest of the process, so that nothing can be undone
/// or used on.
///
/// It is a cause of the [`StageError`](crate::engine::StageError) of the step in which it is
/// found out, which may be a later one than that which caused it, and what every later call
/// gives.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "a device failed and answers nothing any more: start the process anew (it was first seen in {first}; \
     what caused it may have been told to the device before)"
)]
#[non_exhaustive]
pub struct DeviceLost {
    /// Where it was first seen, and what the device said.
    pub first: String,
}

/// Whether an error is CUDA's own, which may be the end of a device, and not want of memory,
/// which is none.
pub(super) fn is_of_cuda(error: &anyhow::Error) -> bool {
    let says = |words: &str| error.chain().any(|own| own.to_string().contains(words));
    says("CUDA error:") && !says("out of memory")
}
