//! Norms of lists of tensors.

use std::ffi::c_int;
use std::ptr;

use tch::{Device, Tensor};

use super::{Result, TensorPtr, check, lend_all, own};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_cpu_norms(tensors: *mut TensorPtr, count: i64, out: *mut f64) -> c_int;
    fn gp_norms_there(tensors: *mut TensorPtr, count: i64, out: *mut TensorPtr) -> c_int;
    fn gp_device_norms(tensors: *mut TensorPtr, count: i64, out: *mut f64) -> c_int;
}

/// Returns the 2-norm of each tensor, all on one device; each norm is independent of the other
/// tensors.
pub(crate) fn norms(tensors: &[Tensor]) -> Result<Vec<f64>> {
    let on_cpu = |tensor: &Tensor| !tensor.defined() || tensor.device() == Device::Cpu;
    if tensors.iter().all(on_cpu) {
        call(gp_cpu_norms, tensors)
    } else {
        device_norms(tensors)
    }
}

/// Computes [`norms`] with kernels of the tensors' device.
pub(crate) fn device_norms(tensors: &[Tensor]) -> Result<Vec<f64>> {
    call(gp_device_norms, tensors)
}

/// Returns the 2-norms of dense `f32` tensors on one device as an `f64` tensor there, without a
/// host sync.
pub(crate) fn norms_there(tensors: &[Tensor]) -> Result<Tensor> {
    let mut out = ptr::null_mut();
    // SAFETY: a list of lent tensors that outlive the call; `out` is a new tensor on success.
    unsafe {
        check(gp_norms_there(
            lend_all(tensors).as_mut_ptr(),
            tensors.len() as i64,
            &raw mut out,
        ))?;
        own(out)
    }
    .ok_or_else(|| TorchError::new("norms gave no tensor"))
}

type Norms = unsafe extern "C" fn(*mut TensorPtr, i64, *mut f64) -> c_int;

fn call(norms: Norms, tensors: &[Tensor]) -> Result<Vec<f64>> {
    let mut out = vec![0.0; tensors.len()];
    // SAFETY: a list of lent tensors and a place for one number each, which
    // outlive the call.
    check(unsafe {
        norms(
            lend_all(tensors).as_mut_ptr(),
            tensors.len() as i64,
            out.as_mut_ptr(),
        )
    })?;
    Ok(out)
}
