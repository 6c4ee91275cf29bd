//! Values that may share memory, as views do (see `shim/aliases.h`).

use std::ffi::c_int;
use std::ptr;

use tch::Tensor;

use super::{Result, TensorPtr, check, lend, lend_all, own};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_aliases(values: *const TensorPtr, count: i64, lead: *mut i64, shared: *mut i64) -> c_int;
    fn gp_in_memory_of(
        values: *const TensorPtr,
        count: i64,
        own: *const TensorPtr,
        owned: i64,
        inside: *mut bool,
    ) -> c_int;
    fn gp_copies(
        values: *const TensorPtr,
        count: i64,
        wanted: *const bool,
        out: *mut TensorPtr,
    ) -> c_int;
    fn gp_carrier(aliases: *const TensorPtr, count: i64, out: *mut TensorPtr) -> c_int;
    fn gp_parts(
        other: TensorPtr,
        carrier: TensorPtr,
        aliases: *const TensorPtr,
        count: i64,
        out: *mut TensorPtr,
    ) -> c_int;
    fn gp_tensor_over(
        memory: TensorPtr,
        begin: i64,
        kind: c_int,
        sizes: *const i64,
        strides: *const i64,
        dimensions: i64,
        out: *mut TensorPtr,
    ) -> c_int;
    fn gp_identity(tensor: TensorPtr, identity: *mut u64, offset: *mut i64) -> c_int;
}

/// Values as the shim takes them, null for absent ones.
pub(super) fn lend_some<'a>(values: impl Iterator<Item = Option<&'a Tensor>>) -> Vec<TensorPtr> {
    values
        .map(|value| value.map_or(ptr::null_mut(), lend))
        .collect()
}

/// Takes ownership of values, null for absent ones.
///
/// # Safety
/// That of [`own`], for each pointer.
pub(super) unsafe fn own_some(values: Vec<TensorPtr>) -> Vec<Option<Tensor>> {
    // SAFETY: the caller's promise.
    let own = |pointer| unsafe { own(pointer) };
    values.into_iter().map(own).collect()
}

/// Returns for each value the first value that it shares memory with, directly or through others;
/// `None` if no two values share memory.
#[doc(alias = "alias")]
pub(crate) fn aliases<'a>(
    values: impl Iterator<Item = Option<&'a Tensor>>,
) -> Result<Option<Vec<usize>>> {
    let values = lend_some(values);
    if values.len() < 2 {
        return Ok(None);
    }
    let mut first: Vec<i64> = (0..values.len() as i64).collect();
    let mut shared = 0;
    let (list, count) = (values.as_ptr(), values.len() as i64);
    // SAFETY: null or lent tensors, and room for as many numbers.
    check(unsafe { gp_aliases(list, count, first.as_mut_ptr(), &raw mut shared) })?;
    let first = first.into_iter().map(|number| number as usize);
    Ok((shared > 0).then(|| first.collect()))
}

/// Returns which of the values lie in the memory of these tensors.
pub(crate) fn in_memory_of<'a>(
    values: impl Iterator<Item = Option<&'a Tensor>>,
    own: impl Iterator<Item = &'a Tensor>,
) -> Result<Vec<bool>> {
    let values = lend_some(values);
    let own: Vec<TensorPtr> = own.map(lend).collect();
    let mut inside = vec![false; values.len()];
    let (list, count) = (values.as_ptr(), values.len() as i64);
    let (owned, many) = (own.as_ptr(), own.len() as i64);
    // SAFETY: null or lent tensors, and room for as many answers.
    check(unsafe { gp_in_memory_of(list, count, owned, many, inside.as_mut_ptr()) })?;
    Ok(inside)
}

/// Returns the values, with the wanted ones copied; those that share memory still do. Gradients of
/// copies are the values' gradients.
pub(crate) fn copies<'a>(
    values: impl Iterator<Item = Option<&'a Tensor>>,
    wanted: &[bool],
) -> Result<Vec<Option<Tensor>>> {
    let values = lend_some(values);
    let mut out = vec![ptr::null_mut(); values.len()];
    if wanted.len() != values.len() {
        return Err(TorchError::new("a wish for each value"));
    }
    let (list, count) = (values.as_ptr(), values.len() as i64);
    // SAFETY: null or lent tensors and as many wishes; there is room for as many tensors.
    unsafe {
        check(gp_copies(list, count, wanted.as_ptr(), out.as_mut_ptr()))?;
        Ok(own_some(out))
    }
}

/// Returns a dense tensor over the memory that these values share (their carrier), detached from
/// the graph.
pub(crate) fn carrier(aliases: &[Tensor]) -> Result<Tensor> {
    let list = lend_all(aliases);
    let mut out = ptr::null_mut();
    // SAFETY: the tensors are alive; `out` is a new tensor on success.
    unsafe {
        check(gp_carrier(list.as_ptr(), list.len() as i64, &raw mut out))?;
        own(out)
    }
    .ok_or_else(|| TorchError::new("shared memory gave no tensor"))
}

/// Returns the same views of another tensor instead of their carrier.
pub(crate) fn parts(
    other: &Tensor,
    carrier: &Tensor,
    aliases: &[Tensor],
) -> Result<Vec<Option<Tensor>>> {
    let list = lend_all(aliases);
    let mut out = vec![ptr::null_mut(); list.len()];
    let (from, count) = (list.as_ptr(), list.len() as i64);
    // SAFETY: the tensors are alive; there is room for as many new ones.
    unsafe {
        check(gp_parts(
            lend(other),
            lend(carrier),
            from,
            count,
            out.as_mut_ptr(),
        ))?;
        Ok(own_some(out))
    }
}

/// Returns a tensor over the memory of another one, which begins `begin` bytes after that one's
/// first element; `kind` is libtorch's number of its kind. It requires no gradient, and writing to
/// either changes the version of both.
pub(crate) fn tensor_over(
    memory: &Tensor,
    begin: i64,
    kind: u8,
    sizes: &[i64],
    strides: &[i64],
) -> Result<Tensor> {
    if sizes.len() != strides.len() {
        return Err(TorchError::new("a stride for each size"));
    }
    let (dimensions, kind) = (sizes.len() as i64, c_int::from(kind));
    let (sizes, strides) = (sizes.as_ptr(), strides.as_ptr());
    let mut out = ptr::null_mut();
    // SAFETY: a lent tensor, and as many sizes and strides; `out` is a new tensor on success.
    unsafe {
        check(gp_tensor_over(
            lend(memory),
            begin,
            kind,
            sizes,
            strides,
            dimensions,
            &raw mut out,
        ))?;
        own(out)
    }
    .ok_or_else(|| TorchError::new("memory gave no tensor"))
}

/// Returns a number that is equal for handles to the same tensor, and the index of the tensor's
/// first element in its storage.
pub(crate) fn identity(tensor: &Tensor) -> Result<(u64, i64)> {
    let (mut identity, mut offset) = (0, 0);
    // SAFETY: a lent tensor, and room for two numbers.
    check(unsafe { gp_identity(lend(tensor), &raw mut identity, &raw mut offset) })?;
    Ok((identity, offset))
}
