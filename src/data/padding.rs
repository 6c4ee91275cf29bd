//! Padding of rows to equal length.

use tch::Tensor;

use super::{Number, OnDevice, room};
use gpipe_torch::{TorchError, with_numbers};

/// Rows padded to the longest.
#[derive(Debug)]
pub struct Padded {
    /// The padded rows: `[rows, longest]`.
    pub rows: Tensor,
    /// True where a row has its own data: `[rows, longest]`, bool.
    pub mask: Tensor,
}

impl OnDevice for Padded {
    fn map_tensors(
        self,
        each: &mut dyn FnMut(Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Self, TorchError> {
        let (rows, mask) = (each(self.rows)?, each(self.mask)?);
        Ok(Self { rows, mask })
    }
}

/// Pads rows with `value` to the length of the longest, or to the next multiple of `multiple`; for use
/// in `batch_with`.
///
/// ```
/// use gpipe::data::{Dataset, Made, pad};
///
/// let rows = Dataset::new(Made::new(3, |n| Ok(vec![7_i64; n + 1])));
/// let batch = rows.batch_with(3, |rows| pad(&rows, 0, 4)).load()?.next().expect("a batch")?;
/// assert_eq!(batch.rows.size(), [3, 4]);
/// let lengths = batch.mask.sum_dim_intlist(&[1_i64][..], false, gpipe::tch::Kind::Int64);
/// assert_eq!(Vec::<i64>::try_from(lengths)?, [1, 2, 3]);
/// # Ok::<(), anyhow::Error>(())
/// ```
///
/// # Errors
/// `multiple` is 0, or there is not enough memory.
pub fn pad<T: Number>(rows: &[Vec<T>], value: T, multiple: usize) -> anyhow::Result<Padded> {
    anyhow::ensure!(multiple > 0, "rows cannot be as long as a multiple of 0");
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = longest.next_multiple_of(multiple);
    let shape = [rows.len() as i64, width as i64];
    let mut all = room::empty(&shape, T::KIND)?;
    let mut mask = room::empty(&shape, tch::Kind::Bool)?;
    with_numbers(&mut all, |all: &mut [T]| {
        let places = all.chunks_exact_mut(width.max(1)).zip(rows);
        places.for_each(|(place, row)| {
            let (own, rest) = place.split_at_mut(row.len());
            own.copy_from_slice(row);
            rest.fill(value);
        });
    })?;
    with_numbers(&mut mask, |mask: &mut [bool]| {
        let places = mask.chunks_exact_mut(width.max(1)).zip(rows);
        places.for_each(|(place, row)| {
            let (own, rest) = place.split_at_mut(row.len());
            own.fill(true);
            rest.fill(false);
        });
    })?;
    Ok(Padded { rows: all, mask })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_are_what_they_were_and_the_rest_is_the_value(
            rows in prop::collection::vec(prop::collection::vec(0_i64..9, 0..8), 0..6),
            multiple in 1_usize..5,
        ) {
            let padded = pad(&rows, -7, multiple).unwrap();
            let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
            let width = longest.next_multiple_of(multiple);
            prop_assert_eq!(padded.rows.size(), [rows.len() as i64, width as i64]);
            let wanted: Vec<i64> = (rows.iter())
                .flat_map(|row| (0..width).map(|place| row.get(place).copied().unwrap_or(-7)))
                .collect();
            let there: Vec<bool> = (rows.iter())
                .flat_map(|row| (0..width).map(|place| place < row.len()))
                .collect();
            prop_assert_eq!(Vec::<i64>::try_from(padded.rows.reshape([-1])).unwrap(), wanted);
            prop_assert_eq!(Vec::<bool>::try_from(padded.mask.reshape([-1])).unwrap(), there);
        }
    }
}
