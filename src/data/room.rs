//! Where batches lie: in memory that is used again, on the threads of a loader.

use std::cell::RefCell;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::Gathered;
use gpipe_torch::{Pool, TorchError, with_bytes};

/// Bytes from which on memory is taken from the pool: less costs nothing to allocate.
const LEAST: usize = 1 << 14;

thread_local! {
    static POOL: RefCell<Option<Arc<Pool>>> = const { RefCell::new(None) };
}

/// Has the calling thread take the memory of batches from this pool from now on.
pub(super) fn enter(pool: Arc<Pool>) {
    POOL.replace(Some(pool));
}

/// A dense tensor on the CPU, to be written from end to end.
///
/// # Errors
/// There is not so much memory.
pub(super) fn empty(shape: &[i64], kind: Kind) -> Result<Tensor, TorchError> {
    let width = kind.elt_size_in_bytes();
    let numbers = |shape: &[i64]| {
        let mut sides = shape.iter().map(|side| usize::try_from(*side).ok());
        sides.try_fold(width, |all, side| all.checked_mul(side?))
    };
    if numbers(shape).is_some_and(|bytes| bytes >= LEAST) {
        let pooled = POOL.with_borrow(|pool| match pool {
            Some(pool) => pool.empty(shape, kind),
            None => Ok(None),
        })?;
        if let Some(tensor) = pooled {
            return Ok(tensor);
        }
    }
    Ok(Tensor::f_empty(shape, (kind, Device::Cpu))?)
}

/// A batch of rows, each of which `fill` writes; none where one of them cannot be written.
pub(super) fn rows(
    count: usize,
    row: &[i64],
    kind: Kind,
    mut fill: impl FnMut(usize, &mut [u8]) -> bool,
) -> Option<Gathered> {
    let shape = [&[count as i64], row].concat();
    let mut batch = empty(&shape, kind).ok()?;
    let filled = with_bytes(&mut batch, |bytes| {
        let width = bytes.len() / count.max(1);
        (0..count).all(|place| fill(place, &mut bytes[place * width..][..width]))
    });
    filled.ok()?.then_some(Gathered::Tensor(batch))
}
