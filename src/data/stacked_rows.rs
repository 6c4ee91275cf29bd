//! Stacking of rows of numbers.

use std::fmt;
use std::marker::PhantomData;

use tch::{Kind, Tensor};

use super::stack::{Number, Stack, Stacking, gathered_tensor};
use super::{Gathered, room};
use gpipe_torch::{TorchError, with_numbers};

/// A row of numbers written directly to the batch, without making an item first: for example, an
/// image's bytes converted to floats. Rows stack to a matrix, like those of a `Vec`.
///
/// ```
/// use gpipe::data::{Dataset, Made, Row};
///
/// let bytes = Dataset::new(Made::new(4, |number| Ok(vec![number as u8; 3])));
/// let floats = bytes.map(|bytes| {
///     Ok(Row::new(bytes.len(), move |row: &mut [f32]| {
///         for (to, from) in row.iter_mut().zip(&bytes) {
///             *to = f32::from(*from) / 255.0;
///         }
///     }))
/// });
/// let x = floats.batch(4).load()?.next().expect("a batch")?;
/// assert_eq!(x.size(), [4, 3]);
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct Row<T, F> {
    length: usize,
    write: F,
    numbers: PhantomData<fn(&mut [T])>,
}

impl<T: Number, F: FnOnce(&mut [T])> Row<T, F> {
    /// Makes a row of `length` numbers, all of which `write` must set: they hold values of an earlier
    /// batch.
    pub fn new(length: usize, write: F) -> Self {
        Self {
            length,
            write,
            numbers: PhantomData,
        }
    }
}

impl<T, F> fmt::Debug for Row<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Row");
        shown.field("length", &self.length).finish_non_exhaustive()
    }
}

impl<T: Number, F: FnOnce(&mut [T])> Stack for Row<T, F> {
    type Batch = Tensor;

    fn stack(items: Vec<Self>) -> anyhow::Result<Tensor> {
        let mut all = Numbers::new(items.len());
        items.into_iter().for_each(|item| all.push(item));
        all.batch::<T>()
    }

    fn stacking(count: usize) -> Box<dyn Stacking<Self, Tensor>>
    where
        Self: 'static,
    {
        Box::new(Numbers::new(count))
    }
}

impl<T: Number> Stack for Vec<T> {
    type Batch = Tensor;

    fn stack(items: Vec<Self>) -> anyhow::Result<Tensor> {
        let mut all = Self::stacking(items.len());
        items.into_iter().for_each(|item| all.push(item));
        all.finish()
    }

    fn stacking(count: usize) -> Box<dyn Stacking<Self, Tensor>> {
        Box::new(Numbers::new(count))
    }

    fn gathered(batch: Gathered) -> Option<Tensor> {
        gathered_tensor(batch)
    }
}

/// Rows of numbers, each copied to its place.
struct Numbers {
    count: usize,
    done: usize,
    /// Length of the first row, and so of each.
    columns: usize,
    batch: Option<Tensor>,
    /// The first row that does not fit, or libtorch's error.
    wrong: Option<anyhow::Error>,
}

impl Numbers {
    fn new(count: usize) -> Self {
        Self {
            count,
            done: 0,
            columns: 0,
            batch: None,
            wrong: None,
        }
    }

    /// Appends a row of this length, which `write` fills.
    fn put<T: Number>(&mut self, row: usize, write: impl FnOnce(&mut [T])) -> anyhow::Result<()> {
        let (place, columns) = (self.done, self.columns);
        anyhow::ensure!(place < self.count, "more items than {}", self.count);
        if self.batch.is_none() {
            self.columns = row;
            let shape = [self.count as i64, row as i64];
            let mut batch = room::empty(&shape, T::KIND)?;
            if T::KIND == Kind::Bool {
                // The memory may hold bytes that are invalid for `bool`.
                let _ = batch.f_zero_().map_err(TorchError::from)?;
            }
            self.batch = Some(batch);
        } else if row != columns {
            anyhow::bail!(
                "item {place} has {row} numbers, the first one {columns}: make them the same length in `map`"
            );
        }
        if let Some(batch) = &mut self.batch {
            with_numbers(batch, |all: &mut [T]| write(&mut all[place * row..][..row]))?;
        }
        self.done += 1;
        Ok(())
    }

    fn batch<T: Number>(self) -> anyhow::Result<Tensor> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let batch = match self.batch {
            Some(batch) => batch,
            None => room::empty(&[0, 0], T::KIND)?,
        };
        if self.done == self.count {
            return Ok(batch);
        }
        let there = batch.f_narrow(0, 0, self.done as i64);
        Ok(there.map_err(TorchError::from)?)
    }
}

impl<T: Number> Stacking<Vec<T>, Tensor> for Numbers {
    fn push(&mut self, row: Vec<T>) {
        if self.wrong.is_none() {
            let put = self.put(row.len(), |place: &mut [T]| place.copy_from_slice(&row));
            self.wrong = put.err();
        }
    }

    fn finish(self: Box<Self>) -> anyhow::Result<Tensor> {
        self.batch::<T>()
    }
}

impl<T: Number, F: FnOnce(&mut [T])> Stacking<Row<T, F>, Tensor> for Numbers {
    fn push(&mut self, row: Row<T, F>) {
        if self.wrong.is_none() {
            self.wrong = self.put(row.length, row.write).err();
        }
    }

    fn finish(self: Box<Self>) -> anyhow::Result<Tensor> {
        self.batch::<T>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(length: usize, from: i64) -> Row<i64, impl FnOnce(&mut [i64])> {
        let write = move |row: &mut [i64]| row.iter_mut().zip(from..).for_each(|(to, n)| *to = n);
        Row::new(length, write)
    }

    #[test]
    fn rows_that_write_themselves_stack_as_vectors_do() {
        let wanted = Stack::stack(vec![vec![1_i64, 2, 3], vec![7, 8, 9]]).unwrap();
        let (first, second) = (row(3, 1), row(3, 7));
        assert_eq!(Stack::stack(vec![first, second]).unwrap(), wanted);
    }

    #[test]
    fn of_another_length_they_are_named() {
        let error = Stack::stack(vec![row(3, 1), row(2, 1)]).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("item 1 has 2 numbers, the first one 3"),
            "{error}"
        );
    }
}
