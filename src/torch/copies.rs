//! Copying values between tensors.

use tch::{Device, Tensor};

use super::error::TorchError;
use super::ffi;

/// Copies a tensor to host memory, with its elements in order.
pub(super) fn host_copy(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let _no_grad = tch::no_grad_guard();
    let tensor = tensor.f_detach()?;
    if tensor.device() == Device::Cpu {
        return ffi::copy(&tensor.f_contiguous()?);
    }
    Ok(tensor.f_to_device(Device::Cpu)?.f_contiguous()?)
}

/// Copies values into a tensor, whose device and strides stay as they are.
pub(super) fn fill(to: &Tensor, from: &Tensor) -> Result<(), TorchError> {
    tch::no_grad(|| to.shallow_clone().f_copy_(from))?;
    Ok(())
}

/// Makes a tensor with these values and the device and strides of another.
pub(super) fn like(other: &Tensor, values: &Tensor) -> Result<Tensor, TorchError> {
    let new = tch::no_grad(|| other.f_zeros_like())?;
    fill(&new, values)?;
    Ok(new)
}

/// Copies a tensor with its strides; the copy requires a gradient if the tensor does.
pub(super) fn same_strides(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let copy = tch::no_grad(|| ffi::copy(tensor))?;
    Ok(copy.f_set_requires_grad(tensor.requires_grad())?)
}
