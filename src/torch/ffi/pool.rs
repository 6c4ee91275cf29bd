//! Reusable memory of batches (see `shim/pool.cpp`), and writing rows into it.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::slice;

use tch::kind::Element;
use tch::{Device, Kind, Tensor};

use super::{Result, TensorPtr, check, lend, own};
use crate::error::TorchError;

unsafe extern "C" {
    fn gp_pool_new(out: *mut *mut c_void) -> c_int;
    fn gp_pool_close(pool: *mut c_void);
    fn gp_pool_empty(
        pool: *const c_void,
        kind: c_int,
        sizes: *const i64,
        dimensions: i64,
        out: *mut TensorPtr,
    ) -> c_int;
    fn gp_put_row(batch: TensorPtr, row: i64, item: TensorPtr, done: *mut bool) -> c_int;
}

/// Blocks of memory for tensors, which return when the last handle of the tensor is dropped.
#[derive(Debug)]
pub struct Pool(NonNull<c_void>);

// SAFETY: the shim's pool is behind a mutex, and counted atomically.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool that keeps nothing yet.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn new() -> Result<Self> {
        let mut out = ptr::null_mut();
        // SAFETY: `out` holds a pool after a successful call.
        check(unsafe { gp_pool_new(&raw mut out) })?;
        let pool = NonNull::new(out).ok_or_else(|| TorchError::new("no pool"))?;
        Ok(Self(pool))
    }

    /// Makes an uninitialized dense CPU tensor; `None` for a kind without a number here.
    pub fn empty(&self, sizes: &[i64], kind: Kind) -> Result<Option<Tensor>> {
        let Some(kind) = number(kind) else {
            return Ok(None);
        };
        let mut out = ptr::null_mut();
        let (first, dimensions) = (sizes.as_ptr(), sizes.len() as i64);
        // SAFETY: the pool lives as long as this, the sizes through the call; `out` is a new
        // tensor on success.
        unsafe {
            let pool = self.0.as_ptr();
            check(gp_pool_empty(pool, kind, first, dimensions, &raw mut out))?;
            Ok(own(out))
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: what `gp_pool_new` gave, closed once.
        unsafe { gp_pool_close(self.0.as_ptr()) };
    }
}

/// Returns libtorch's number of a kind.
fn number(kind: Kind) -> Option<c_int> {
    Some(match kind {
        Kind::Uint8 => 0,
        Kind::Int8 => 1,
        Kind::Int16 => 2,
        Kind::Int => 3,
        Kind::Int64 => 4,
        Kind::Half => 5,
        Kind::Float => 6,
        Kind::Double => 7,
        Kind::Bool => 11,
        Kind::BFloat16 => 15,
        _ => return None,
    })
}

/// Copies a tensor to a row of a dense CPU tensor; false if it differs from the rows in shape or
/// kind, is on another device, or is part of a graph.
pub fn put_row(batch: &mut Tensor, row: usize, item: &Tensor) -> Result<bool> {
    let plain = batch.device() == Device::Cpu && batch.is_contiguous();
    if !plain || batch.dim() == 0 {
        return Err(TorchError::new(
            "rows are put into a dense batch on the CPU",
        ));
    }
    let mut done = false;
    // SAFETY: both tensors are alive, the batch is dense and on the CPU, and the shim checks the
    // row and the item; nobody else has the batch.
    check(unsafe { gp_put_row(lend(batch), row as i64, lend(item), &raw mut done) })?;
    Ok(done)
}

/// Passes the numbers of a dense CPU tensor, in order, to `show` for writing.
///
/// No other handle may share the tensor's memory, as is the case until it is handed out.
pub fn with_numbers<T: Element, R>(
    tensor: &mut Tensor,
    show: impl FnOnce(&mut [T]) -> R,
) -> Result<R> {
    if tensor.kind() != T::KIND {
        return Err(TorchError::new("a tensor has numbers of another kind"));
    }
    let count = dense(tensor)?;
    if count == 0 {
        return Ok(show(&mut []));
    }
    // SAFETY: it is dense, on the CPU, and has so many numbers of this kind; `tensor` is borrowed
    // for as long.
    Ok(show(unsafe {
        slice::from_raw_parts_mut(tensor.data_ptr().cast::<T>(), count)
    }))
}

/// Does as [`with_numbers`] with the bytes of any kind. Booleans must be 0 or 1.
pub fn with_bytes<R>(tensor: &mut Tensor, show: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
    let bytes = dense(tensor)? * tensor.kind().elt_size_in_bytes();
    if bytes == 0 {
        return Ok(show(&mut []));
    }
    // SAFETY: as in `with_numbers`.
    Ok(show(unsafe {
        slice::from_raw_parts_mut(tensor.data_ptr().cast::<u8>(), bytes)
    }))
}

/// Returns how many numbers a dense CPU tensor has.
fn dense(tensor: &Tensor) -> Result<usize> {
    if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        return Err(TorchError::new("a tensor is not dense, or not on the CPU"));
    }
    Ok(tensor.numel())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(tensor: &Tensor) -> usize {
        tensor.data_ptr() as usize
    }

    /// Memory is reused only after its last holder is gone.
    #[test]
    fn a_block_comes_back_when_its_last_holder_is_gone() {
        let pool = Pool::new().unwrap();
        let make = || pool.empty(&[64, 100], Kind::Float).unwrap().unwrap();
        let first = make();
        assert_eq!((first.size(), first.kind()), (vec![64, 100], Kind::Float));
        let place = address(&first);
        let row = first.get(3);
        drop(first);
        let second = make();
        assert_ne!(address(&second), place, "a row of it is held");
        drop(row);
        let third = make();
        assert_eq!(address(&third), place);
        drop(third);
        let less = pool.empty(&[60, 100], Kind::Float).unwrap().unwrap();
        assert_eq!(address(&less), place, "the last batch of an epoch");
        drop(less);
        assert_eq!(address(&make()), place, "which was no smaller than it is");
    }

    /// Batches of changing sizes do not leave a block of each size.
    #[test]
    fn there_are_no_more_blocks_than_were_out_at_a_time() {
        let pool = Pool::new().unwrap();
        let account = crate::memory::Account::new().unwrap();
        let scope = account.enter();
        for side in 1..50 {
            let shape = [side * side, 1000];
            drop(pool.empty(&shape, Kind::Float).unwrap());
        }
        drop(scope);
        let largest = 4 * 49 * 49 * 1000;
        assert!(account.current() <= largest, "{}", account.current());
        drop(pool);
        assert_eq!(account.current(), 0);
    }

    #[test]
    fn tensors_outlive_their_pool_and_may_be_resized() {
        let pool = Pool::new().unwrap();
        let mut tensor = pool.empty(&[10], Kind::Int64).unwrap().unwrap();
        drop(pool);
        with_numbers(&mut tensor, |all: &mut [i64]| all.fill(7)).unwrap();
        assert_eq!(Vec::<i64>::try_from(&tensor).unwrap(), [7; 10]);
        let _ = tensor.resize_([1000]);
        assert_eq!(tensor.get(9).int64_value(&[]), 7);
        assert_eq!(tensor.size(), [1000]);
    }

    #[test]
    fn only_rows_like_the_others_are_put() {
        let pool = Pool::new().unwrap();
        let mut batch = pool.empty(&[2, 3], Kind::Float).unwrap().unwrap();
        let row = Tensor::from_slice(&[1.0_f32, 2.0, 3.0]);
        assert!(put_row(&mut batch, 1, &row).unwrap());
        let steps = Tensor::from_slice(&[4.0_f32, 0.0, 5.0, 0.0, 6.0]).slice(0, 0, 5, 2);
        assert!(put_row(&mut batch, 0, &steps).unwrap());
        let numbers = Vec::<f32>::try_from(batch.reshape([-1])).unwrap();
        assert_eq!(numbers, [4.0, 5.0, 6.0, 1.0, 2.0, 3.0]);
        let graph = row.copy().set_requires_grad(true);
        for other in [row.to_kind(Kind::Double), row.unsqueeze(0), graph] {
            assert!(!put_row(&mut batch, 0, &other).unwrap());
        }
        assert!(put_row(&mut batch, 2, &row).is_err());
        let wrong = with_numbers(&mut batch, |_: &mut [i64]| ());
        assert!(wrong.is_err());
    }
}
