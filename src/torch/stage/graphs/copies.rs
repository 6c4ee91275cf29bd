//! Tensors like others: the same form, memory of their own.

use tch::Tensor;

use crate::torch::copies;
use crate::torch::error::TorchError;

pub(super) fn fresh_or_none(tensor: Option<&Tensor>) -> Result<Option<Tensor>, TorchError> {
    tensor.map(copies::same_strides).transpose()
}

/// Numbers from one tensor to another of the same form.
pub(super) fn fill(to: &Tensor, from: &Tensor) -> Result<(), TorchError> {
    copies::fill(&once(to)?, &once(from)?)
}

/// Every place of its memory once.
pub(super) fn once(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let mut once = tensor.f_detach()?;
    let strides = once.stride();
    for (dimension, (size, stride)) in tensor.size().into_iter().zip(strides).enumerate() {
        if stride == 0 && size > 1 {
            once = once.f_narrow(dimension as i64, 0, 1)?;
        }
    }
    Ok(once)
}
