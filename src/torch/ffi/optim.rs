//! Optimizer kernels and arithmetic over lists of tensors.

use std::ffi::c_int;
use std::ptr;

use tch::Tensor;

use super::{Result, TensorPtr, check, lend, lend_all, same_length};

unsafe extern "C" {
    fn gp_fused_adam(
        parameters: *mut TensorPtr,
        grads: *mut TensorPtr,
        means: *mut TensorPtr,
        squares: *mut TensorPtr,
        steps: *mut TensorPtr,
        count: i64,
        lr: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
        decoupled: c_int,
        found_inf: TensorPtr,
    ) -> c_int;
    fn gp_fused_sgd(
        parameters: *mut TensorPtr,
        grads: *mut TensorPtr,
        buffers: *mut TensorPtr,
        count: i64,
        lr: f64,
        momentum: f64,
        dampening: f64,
        weight_decay: f64,
        nesterov: c_int,
        first: c_int,
        found_inf: TensorPtr,
    ) -> c_int;
    fn gp_scale(tensors: *mut TensorPtr, count: i64, factor: f64) -> c_int;
    fn gp_scale_by(tensors: *mut TensorPtr, count: i64, factor: TensorPtr) -> c_int;
    fn gp_add(tensors: *mut TensorPtr, others: *mut TensorPtr, count: i64) -> c_int;
}

/// Hyperparameters of an Adam or `AdamW` update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdamNumbers {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) weight_decay: f64,
    pub(crate) eps: f64,
    /// Weight decay is not part of the gradient: `AdamW`.
    pub(crate) decoupled: bool,
}

/// Makes one fused update of all `parameters`; each list has one entry per parameter. Changes
/// nothing if `found_inf`, a number on their device, is 1.
#[doc(alias = "fused")]
pub(crate) fn fused_adam(
    parameters: &[Tensor],
    grads: &[Tensor],
    means: &[Tensor],
    squares: &[Tensor],
    steps: &[Tensor],
    numbers: AdamNumbers,
    found_inf: Option<&Tensor>,
) -> Result<()> {
    let count = same_length(&[parameters, grads, means, squares, steps])?;
    // SAFETY: five lists of `count` lent tensors, and one more or null, outlive the call.
    check(unsafe {
        gp_fused_adam(
            lend_all(parameters).as_mut_ptr(),
            lend_all(grads).as_mut_ptr(),
            lend_all(means).as_mut_ptr(),
            lend_all(squares).as_mut_ptr(),
            lend_all(steps).as_mut_ptr(),
            count,
            numbers.lr,
            numbers.beta1,
            numbers.beta2,
            numbers.weight_decay,
            numbers.eps,
            c_int::from(numbers.decoupled),
            found_inf.map_or(ptr::null_mut(), lend),
        )
    })
}

/// Hyperparameters of an SGD update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SgdNumbers {
    pub(crate) lr: f64,
    pub(crate) momentum: f64,
    pub(crate) dampening: f64,
    pub(crate) weight_decay: f64,
    pub(crate) nesterov: bool,
    /// Whether the momentum buffers are still empty.
    pub(crate) first: bool,
}

/// Makes one fused SGD update; `buffers` is empty without momentum. `found_inf` as in
/// [`fused_adam`].
pub(crate) fn fused_sgd(
    parameters: &[Tensor],
    grads: &[Tensor],
    buffers: &[Tensor],
    numbers: SgdNumbers,
    found_inf: Option<&Tensor>,
) -> Result<()> {
    let count = same_length(&[parameters, grads])?;
    let mut momenta = lend_all(buffers);
    let momenta = if buffers.is_empty() {
        ptr::null_mut()
    } else {
        same_length(&[parameters, buffers])?;
        momenta.as_mut_ptr()
    };
    // SAFETY: lists of `count` lent tensors that outlive the call, or null.
    check(unsafe {
        gp_fused_sgd(
            lend_all(parameters).as_mut_ptr(),
            lend_all(grads).as_mut_ptr(),
            momenta,
            count,
            numbers.lr,
            numbers.momentum,
            numbers.dampening,
            numbers.weight_decay,
            c_int::from(numbers.nesterov),
            c_int::from(numbers.first),
            found_inf.map_or(ptr::null_mut(), lend),
        )
    })
}

/// `tensors[i] *= factor`, in one call.
pub(crate) fn scale(tensors: &[Tensor], factor: f64) -> Result<()> {
    if tensors.is_empty() {
        return Ok(());
    }
    // SAFETY: a list of lent tensors that outlive the call.
    check(unsafe { gp_scale(lend_all(tensors).as_mut_ptr(), tensors.len() as i64, factor) })
}

/// `tensors[i] *= factor`, in one call; the factor is one number on the tensors' device.
pub(crate) fn scale_by(tensors: &[Tensor], factor: &Tensor) -> Result<()> {
    if tensors.is_empty() {
        return Ok(());
    }
    // SAFETY: a list of lent tensors, and one more, that outlive the call.
    check(unsafe {
        gp_scale_by(
            lend_all(tensors).as_mut_ptr(),
            tensors.len() as i64,
            lend(factor),
        )
    })
}

/// `tensors[i] += others[i]`, in one call.
pub(crate) fn add(tensors: &[Tensor], others: &[Tensor]) -> Result<()> {
    let count = same_length(&[tensors, others])?;
    if count == 0 {
        return Ok(());
    }
    // SAFETY: two lists of `count` lent tensors that outlive the call.
    check(unsafe {
        gp_add(
            lend_all(tensors).as_mut_ptr(),
            lend_all(others).as_mut_ptr(),
            count,
        )
    })
}
