//! Tensors like others: the same form, memory of their own.

use tch::Tensor;

use super::address;
use crate::torch::copies;
use crate::torch::error::TorchError;
use crate::torch::ffi;

/// A copy with the same strides, also where a value is spread over several places (the
/// gradient of a mean, say).
///
/// # Errors
/// One that overlaps itself in memory in another way has no such copy.
pub(super) fn fresh(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let copy = tch::no_grad(|| -> Result<Tensor, TorchError> {
        let once = once(tensor)?;
        let mut copy = ffi::copy(&once)?;
        if tensor.numel() > 0 && address(&copy) == address(&once) {
            copy = with_gaps(&once)?;
        }
        if once.size() == tensor.size() {
            return Ok(copy);
        }
        Ok(copy.f_expand(tensor.size(), false)?)
    })?;
    if tensor.requires_grad() {
        return Ok(copy.f_set_requires_grad(true)?);
    }
    Ok(copy)
}

pub(super) fn fresh_or_none(tensor: Option<&Tensor>) -> Result<Option<Tensor>, TorchError> {
    tensor.map(fresh).transpose()
}

/// Numbers from one tensor to another of the same form.
pub(super) fn fill(to: &Tensor, from: &Tensor) -> Result<(), TorchError> {
    copies::fill(&once(to)?, &once(from)?)
}

/// A copy of a part of a larger tensor, whose rows are as far apart.
fn with_gaps(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let (sizes, strides) = (tensor.size(), tensor.stride());
    let dimensions = sizes.iter().copied().zip(strides.iter().copied());
    let mut dimensions: Vec<(i64, i64)> = dimensions.filter(|(size, _)| *size > 1).collect();
    dimensions.sort_by_key(|(_, stride)| *stride);
    let mut reach = 0;
    for (size, stride) in dimensions {
        if stride <= reach {
            return Err(TorchError::new("a value overlaps itself in memory"));
        }
        reach += stride * (size - 1);
    }
    let options = (tensor.kind(), tensor.device());
    let copy = Tensor::f_empty_strided(sizes, strides, options)?;
    copies::fill(&copy, tensor)?;
    Ok(copy)
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
