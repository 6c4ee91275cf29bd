//! Whether somebody writes into tensors.

use tch::Tensor;

use crate::torch::error::TorchError;
use crate::torch::ffi;

/// What was seen to be written to in a run: tensors, and how often they had been
/// changed before anybody in the run could.
pub(super) type Watched = Vec<(Tensor, i64)>;

/// Begins to watch tensors.
pub(super) fn watch<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<Watched, TorchError> {
    tensors
        .map(|tensor| Ok((tensor.shallow_clone(), ffi::changes(tensor)?)))
        .collect()
}

/// Whether one of them has been written to.
pub(super) fn changed(watched: &[(Tensor, i64)]) -> Result<bool, TorchError> {
    for (tensor, before) in watched {
        if ffi::changes(tensor)? != *before {
            return Ok(true);
        }
    }
    Ok(false)
}
