//! Reuses the memory of batches on a loader's threads.

use std::cell::RefCell;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::Gathered;
use gpipe_torch::{Pool, TorchError, with_bytes};

/// Smallest allocation taken from the pool: smaller ones are cheap.
const LEAST: usize = 1 << 14;

thread_local! {
    static POOL: RefCell<Option<Arc<Pool>>> = const { RefCell::new(None) };
}

/// Makes the calling thread take the memory of batches from this pool.
pub(super) fn enter(pool: Arc<Pool>) {
    POOL.replace(Some(pool));
}

/// Makes a dense CPU tensor that must be fully written.
///
/// # Errors
/// There is not enough memory.
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

/// Makes a batch of rows, each written by `fill`; `None` if a row fails.
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
