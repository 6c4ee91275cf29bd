//! What autograd saves, on its way to the host and back (see `shim/saved_tensors.cpp`).

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use tch::{Device, Tensor};

use super::{Result, TensorPtr, check, lend, own};
use crate::torch::error::TorchError;

unsafe extern "C" {
    fn gp_shelf_new(cuda: c_int, least: i64, out: *mut *mut c_void) -> c_int;
    fn gp_shelf_free(shelf: *mut c_void);
    fn gp_shelf_stays(shelf: *mut c_void, tensor: TensorPtr) -> c_int;
    fn gp_shelf_foreign(shelf: *mut c_void, tensor: TensorPtr) -> c_int;
    fn gp_shelf_enter(shelf: *mut c_void) -> *mut c_void;
    fn gp_shelf_len(shelf: *const c_void) -> i64;
    fn gp_shelf_here(
        shelf: *mut c_void,
        number: i64,
        out: *mut TensorPtr,
        foreign: *mut c_int,
    ) -> c_int;
    fn gp_shelf_away(shelf: *mut c_void, number: i64, out: *mut TensorPtr) -> c_int;
    fn gp_shelf_put_away(shelf: *mut c_void, number: i64, copy: TensorPtr) -> c_int;
    fn gp_shelf_bring_back(shelf: *mut c_void, number: i64, copy: TensorPtr) -> c_int;
}

/// What the autograd graph of one micro-batch has saved on a stage, as numbered pieces
/// of memory.
#[derive(Debug)]
pub(crate) struct Shelf {
    pointer: NonNull<c_void>,
}

impl Shelf {
    /// For a stage on this device; pieces of fewer than `least` bytes stay where they are.
    pub(crate) fn new(device: Device, least: u64) -> Result<Self> {
        let mut out = ptr::null_mut();
        let least = i64::try_from(least).unwrap_or(i64::MAX);
        // SAFETY: `out` holds an owned shelf after a successful call.
        check(unsafe { gp_shelf_new(c_int::from(device.is_cuda()), least, &raw mut out) })?;
        let pointer = NonNull::new(out).ok_or_else(|| TorchError::new("no shelf"))?;
        Ok(Self { pointer })
    }

    /// The tensor's memory stays where it is.
    pub(crate) fn stays(&self, tensor: &Tensor) -> Result<()> {
        // SAFETY: shelf and tensor are alive through the call.
        check(unsafe { gp_shelf_stays(self.pointer.as_ptr(), lend(tensor)) })
    }

    /// The tensor's memory was there before the forward.
    pub(crate) fn foreign(&self, tensor: &Tensor) -> Result<()> {
        // SAFETY: shelf and tensor are alive through the call.
        check(unsafe { gp_shelf_foreign(self.pointer.as_ptr(), lend(tensor)) })
    }

    /// What the calling thread saves while the result lives is put here.
    pub(crate) fn enter(&self) -> ShelfScope<'_> {
        ShelfScope {
            // SAFETY: the shelf outlives the scope, which takes it off this thread.
            before: unsafe { gp_shelf_enter(self.pointer.as_ptr()) },
            shelf: PhantomData,
        }
    }

    /// How many pieces have been put here.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the shelf is alive.
        usize::try_from(unsafe { gp_shelf_len(self.pointer.as_ptr()) }).unwrap_or(0)
    }

    /// A piece that is where the stage computes, and whether it was there before the
    /// forward; none once it is on the host or not needed any more.
    pub(crate) fn here(&self, number: usize) -> Result<Option<(Tensor, bool)>> {
        let (mut out, mut foreign) = (ptr::null_mut(), 0);
        // SAFETY: the shelf is alive; `out` is null or a new tensor on success.
        let tensor = unsafe {
            check(gp_shelf_here(
                self.pointer.as_ptr(),
                number as i64,
                &raw mut out,
                &raw mut foreign,
            ))?;
            own(out)
        };
        Ok(tensor.map(|tensor| (tensor, foreign != 0)))
    }

    /// A piece that is on the host; none where it is not, or not needed any more.
    pub(crate) fn away(&self, number: usize) -> Result<Option<Tensor>> {
        let mut out = ptr::null_mut();
        // SAFETY: the shelf is alive; `out` is null or a new tensor on success.
        unsafe {
            check(gp_shelf_away(
                self.pointer.as_ptr(),
                number as i64,
                &raw mut out,
            ))?;
            Ok(own(out))
        }
    }

    /// The piece is this copy of it on the host from now on.
    pub(crate) fn put_away(&self, number: usize, copy: &Tensor) -> Result<()> {
        // SAFETY: shelf and tensor are alive through the call.
        check(unsafe { gp_shelf_put_away(self.pointer.as_ptr(), number as i64, lend(copy)) })
    }

    /// The piece is this copy of it where the stage computes from now on.
    pub(crate) fn bring_back(&self, number: usize, copy: &Tensor) -> Result<()> {
        // SAFETY: shelf and tensor are alive through the call.
        check(unsafe { gp_shelf_bring_back(self.pointer.as_ptr(), number as i64, lend(copy)) })
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self` and freed once.
        unsafe { gp_shelf_free(self.pointer.as_ptr()) }
    }
}

/// A stretch of code whose saved tensors go on a shelf; see [`Shelf::enter`].
#[derive(Debug)]
#[must_use = "tensors are put on the shelf only while this lives"]
pub(crate) struct ShelfScope<'a> {
    before: *mut c_void,
    shelf: PhantomData<&'a Shelf>,
}

impl Drop for ShelfScope<'_> {
    fn drop(&mut self) {
        // SAFETY: `before` is null or a shelf whose own scope on this thread is around
        // this one.
        unsafe { gp_shelf_enter(self.before) };
    }
}
