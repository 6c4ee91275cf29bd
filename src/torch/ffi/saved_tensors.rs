//! Tensors saved by autograd, which can be offloaded (see `shim/saved_tensors.cpp`).

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use tch::{Device, Tensor};

use super::{Result, TensorPtr, check, lend, own};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_saved_pool_new(cuda: c_int, least: i64, out: *mut *mut c_void) -> c_int;
    fn gp_saved_pool_free(pool: *mut c_void);
    fn gp_saved_pool_keep_on_device(pool: *mut c_void, tensor: TensorPtr) -> c_int;
    fn gp_saved_pool_mark_foreign(pool: *mut c_void, tensor: TensorPtr) -> c_int;
    fn gp_saved_pool_enter(pool: *mut c_void) -> *mut c_void;
    fn gp_saved_pool_len(pool: *const c_void) -> i64;
    fn gp_saved_pool_on_device(
        pool: *mut c_void,
        number: i64,
        out: *mut TensorPtr,
        foreign: *mut c_int,
    ) -> c_int;
    fn gp_saved_pool_on_host(pool: *mut c_void, number: i64, out: *mut TensorPtr) -> c_int;
    fn gp_saved_pool_set_on_host(pool: *mut c_void, number: i64, copy: TensorPtr) -> c_int;
    fn gp_saved_pool_set_on_device(pool: *mut c_void, number: i64, copy: TensorPtr) -> c_int;
}

/// The tensors saved by the autograd graph of one micro-batch on a stage, as numbered pieces of
/// memory.
#[doc(alias = "saved_tensors_hooks")]
#[doc(alias = "save_on_cpu")]
#[derive(Debug)]
pub(crate) struct SavedTensorPool {
    pointer: NonNull<c_void>,
}

impl SavedTensorPool {
    /// Makes a pool for a stage on this device; pieces below `least` bytes stay where they are.
    pub(crate) fn new(device: Device, least: u64) -> Result<Self> {
        let mut out = ptr::null_mut();
        let least = i64::try_from(least).unwrap_or(i64::MAX);
        // SAFETY: `out` holds an owned pool after a successful call.
        check(unsafe { gp_saved_pool_new(c_int::from(device.is_cuda()), least, &raw mut out) })?;
        let pointer =
            NonNull::new(out).ok_or_else(|| TorchError::new("no pool of saved tensors"))?;
        Ok(Self { pointer })
    }

    /// Keeps the tensor's memory on the device.
    pub(crate) fn keep_on_device(&self, tensor: &Tensor) -> Result<()> {
        // SAFETY: pool and tensor are alive through the call.
        check(unsafe { gp_saved_pool_keep_on_device(self.pointer.as_ptr(), lend(tensor)) })
    }

    /// Marks the tensor's memory as allocated before the forward, perhaps in another stream.
    pub(crate) fn mark_foreign(&self, tensor: &Tensor) -> Result<()> {
        // SAFETY: pool and tensor are alive through the call.
        check(unsafe { gp_saved_pool_mark_foreign(self.pointer.as_ptr(), lend(tensor)) })
    }

    /// Collects the tensors that autograd saves on the calling thread in this pool, while the
    /// result lives.
    pub(crate) fn enter(&self) -> SavedTensorScope<'_> {
        SavedTensorScope {
            // SAFETY: the pool outlives the scope, which takes it off this thread.
            before: unsafe { gp_saved_pool_enter(self.pointer.as_ptr()) },
            pool: PhantomData,
        }
    }

    /// Returns the number of pieces so far.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the pool is alive.
        usize::try_from(unsafe { gp_saved_pool_len(self.pointer.as_ptr()) }).unwrap_or(0)
    }

    /// Returns a piece that is on the stage's device, and whether its memory is marked as foreign;
    /// `None` if it is on the host or no longer needed.
    pub(crate) fn on_device(&self, number: usize) -> Result<Option<(Tensor, bool)>> {
        let (mut out, mut foreign) = (ptr::null_mut(), 0);
        // SAFETY: the pool is alive; `out` is null or a new tensor on success.
        let tensor = unsafe {
            check(gp_saved_pool_on_device(
                self.pointer.as_ptr(),
                number as i64,
                &raw mut out,
                &raw mut foreign,
            ))?;
            own(out)
        };
        Ok(tensor.map(|tensor| (tensor, foreign != 0)))
    }

    /// Returns a piece that is on the host; `None` if it is on the device or no longer needed.
    pub(crate) fn on_host(&self, number: usize) -> Result<Option<Tensor>> {
        let mut out = ptr::null_mut();
        // SAFETY: the pool is alive; `out` is null or a new tensor on success.
        unsafe {
            check(gp_saved_pool_on_host(
                self.pointer.as_ptr(),
                number as i64,
                &raw mut out,
            ))?;
            Ok(own(out))
        }
    }

    /// Replaces the piece by its copy on the host.
    pub(crate) fn set_on_host(&self, number: usize, copy: &Tensor) -> Result<()> {
        // SAFETY: pool and tensor are alive through the call.
        check(unsafe {
            gp_saved_pool_set_on_host(self.pointer.as_ptr(), number as i64, lend(copy))
        })
    }

    /// Replaces the piece by its copy on the device.
    pub(crate) fn set_on_device(&self, number: usize, copy: &Tensor) -> Result<()> {
        // SAFETY: pool and tensor are alive through the call.
        check(unsafe {
            gp_saved_pool_set_on_device(self.pointer.as_ptr(), number as i64, lend(copy))
        })
    }
}

impl Drop for SavedTensorPool {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned by `self` and freed once.
        unsafe { gp_saved_pool_free(self.pointer.as_ptr()) }
    }
}

/// A scope of code whose saved tensors go into a pool; see [`SavedTensorPool::enter`].
#[derive(Debug)]
#[must_use = "tensors are put into the pool only while this lives"]
pub(crate) struct SavedTensorScope<'a> {
    before: *mut c_void,
    pool: PhantomData<&'a SavedTensorPool>,
}

impl Drop for SavedTensorScope<'_> {
    fn drop(&mut self) {
        // SAFETY: `before` is null or a pool whose own scope on this thread is around
        // this one.
        unsafe { gp_saved_pool_enter(self.before) };
    }
}
