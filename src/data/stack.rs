//! Stacking of items to batches.

use tch::{Device, Tensor};

use super::{Gathered, room};
use gpipe_torch::{TorchError, Values, caught, put_row};

/// Items that stack to a batch of tensors, with the items along dimension 0.
///
/// Tensors stack to a tensor, numbers to a vector, vectors of numbers to a matrix, and pairs to a pair
/// of batches.
pub trait Stack: Sized {
    /// Type of a batch.
    type Batch: Send + 'static;

    /// Stacks the items in order.
    ///
    /// # Errors
    /// The items have different sizes.
    fn stack(items: Vec<Self>) -> anyhow::Result<Self::Batch>;

    /// Begins a batch of `count` items that arrive one by one. The result equals that of
    /// [`Stack::stack`], which the default implementation calls; tensors and vectors of numbers are
    /// written directly to their rows, so that no item is held.
    fn stacking(count: usize) -> Box<dyn Stacking<Self, Self::Batch>>
    where
        Self: 'static,
    {
        Box::new(Collected::new(count, Self::stack))
    }

    /// Converts a batch gathered by a source, if its type matches.
    fn gathered(batch: Gathered) -> Option<Self::Batch> {
        drop(batch);
        None
    }
}

pub(super) fn gathered_tensor(batch: Gathered) -> Option<Tensor> {
    match batch {
        Gathered::Tensor(tensor) => Some(tensor),
        Gathered::Pair(..) => None,
    }
}

/// A batch under construction, filled in order.
pub trait Stacking<T, B> {
    /// Appends an item. If it does not fit, [`Stacking::finish`] fails.
    fn push(&mut self, item: T);

    /// Returns the batch.
    ///
    /// # Errors
    /// As [`Stack::stack`].
    fn finish(self: Box<Self>) -> anyhow::Result<B>;
}

/// Items held until the batch is complete.
pub(super) struct Collected<T, F> {
    items: Vec<T>,
    collate: F,
}

impl<T, F> Collected<T, F> {
    pub(super) fn new(count: usize, collate: F) -> Self {
        let items = Vec::with_capacity(count);
        Self { items, collate }
    }
}

impl<T, B, F: Fn(Vec<T>) -> anyhow::Result<B>> Stacking<T, B> for Collected<T, F> {
    fn push(&mut self, item: T) {
        self.items.push(item);
    }

    fn finish(self: Box<Self>) -> anyhow::Result<B> {
        (self.collate)(self.items)
    }
}

impl Stack for Tensor {
    type Batch = Tensor;

    fn stack(items: Vec<Self>) -> anyhow::Result<Tensor> {
        let first = items.first().map(Tensor::size).unwrap_or_default();
        if let Some(place) = items.iter().position(|item| item.size() != first) {
            anyhow::bail!(other_shape(place, &items[place], &first));
        }
        Ok(Tensor::f_stack(&items, 0).map_err(TorchError::from)?)
    }

    fn stacking(count: usize) -> Box<dyn Stacking<Self, Tensor>> {
        Box::new(Tensors {
            count,
            done: 0,
            batch: None,
            others: Vec::new(),
        })
    }

    fn gathered(batch: Gathered) -> Option<Tensor> {
        gathered_tensor(batch)
    }
}

fn other_shape(place: usize, item: &Tensor, first: &[i64]) -> String {
    format!(
        "item {place} has the shape {:?}, the first one {first:?}: make them the same size in `map`",
        item.size()
    )
}

/// Tensors, each copied to its row. After one that differs from the first, for example in type, tensors
/// are held instead, and libtorch stacks them with its own conversions.
struct Tensors {
    count: usize,
    /// Number of filled rows.
    done: usize,
    batch: Option<Tensor>,
    /// Tensors after the filled rows.
    others: Vec<Tensor>,
}

impl Tensors {
    /// Copies the item to its row; returns false if it does not fit.
    fn put(&mut self, item: &Tensor) -> anyhow::Result<bool> {
        if !self.others.is_empty() || self.done == self.count {
            return Ok(false);
        }
        if self.batch.is_none() && item.device() == Device::Cpu {
            let shape = [&[self.count as i64], &item.size()[..]].concat();
            self.batch = Some(room::empty(&shape, item.f_kind()?)?);
        }
        match &mut self.batch {
            Some(batch) => Ok(put_row(batch, self.done, item)?),
            None => Ok(false),
        }
    }

    /// Returns all items, as given.
    fn items(self) -> anyhow::Result<Vec<Tensor>> {
        let mut all = match &self.batch {
            Some(batch) => batch.f_narrow(0, 0, self.done as i64)?.f_unbind(0)?,
            None => Vec::new(),
        };
        all.extend(self.others);
        Ok(all)
    }
}

impl Stacking<Tensor, Tensor> for Tensors {
    fn push(&mut self, item: Tensor) {
        // A tensor that does not fit causes an error when all are stacked.
        if caught(|| self.put(&item)).unwrap_or(false) {
            self.done += 1;
        } else {
            self.others.push(item);
        }
    }

    fn finish(mut self: Box<Self>) -> anyhow::Result<Tensor> {
        match self.batch.take() {
            Some(batch) if self.done == self.count => Ok(batch),
            batch => {
                self.batch = batch;
                <Tensor as Stack>::stack(self.items()?)
            }
        }
    }
}

impl<A: Stack, B: Stack> Stack for (A, B) {
    type Batch = (A::Batch, B::Batch);

    fn stack(items: Vec<Self>) -> anyhow::Result<Self::Batch> {
        let (left, right) = items.into_iter().unzip();
        Ok((A::stack(left)?, B::stack(right)?))
    }

    fn stacking(count: usize) -> Box<dyn Stacking<Self, Self::Batch>>
    where
        Self: 'static,
    {
        Box::new(Both(A::stacking(count), B::stacking(count)))
    }

    fn gathered(batch: Gathered) -> Option<Self::Batch> {
        match batch {
            Gathered::Pair(left, right) => Some((A::gathered(*left)?, B::gathered(*right)?)),
            Gathered::Tensor(_) => None,
        }
    }
}

/// Batches of both sides of pairs.
struct Both<A, X, B, Y>(Box<dyn Stacking<A, X>>, Box<dyn Stacking<B, Y>>);

impl<A, X, B, Y> Stacking<(A, B), (X, Y)> for Both<A, X, B, Y> {
    fn push(&mut self, (left, right): (A, B)) {
        self.0.push(left);
        self.1.push(right);
    }

    fn finish(self: Box<Self>) -> anyhow::Result<(X, Y)> {
        Ok((self.0.finish()?, self.1.finish()?))
    }
}

/// Numeric types of tensors.
pub trait Number: tch::kind::Element + Copy + Send + 'static {}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Number for $number {}

        impl Stack for $number {
            type Batch = Tensor;

            fn stack(items: Vec<Self>) -> anyhow::Result<Tensor> {
                Ok(Tensor::f_from_slice(&items).map_err(TorchError::from)?)
            }

            fn gathered(batch: Gathered) -> Option<Tensor> {
                gathered_tensor(batch)
            }
        }
    )*};
}

numbers!(u8, i8, i16, i32, i64, f32, f64, bool);

/// Values that can be copied to a device ahead of their use.
pub trait OnDevice: Sized {
    /// Replaces each tensor with the result of `each`.
    ///
    /// # Errors
    /// The first error of `each`.
    fn map_tensors(
        self,
        each: &mut dyn FnMut(Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Self, TorchError>;
}

impl OnDevice for Tensor {
    fn map_tensors(
        self,
        each: &mut dyn FnMut(Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Self, TorchError> {
        each(self)
    }
}

impl<A: OnDevice, B: OnDevice> OnDevice for (A, B) {
    fn map_tensors(
        self,
        each: &mut dyn FnMut(Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Self, TorchError> {
        Ok((self.0.map_tensors(each)?, self.1.map_tensors(each)?))
    }
}

impl OnDevice for Values {
    fn map_tensors(
        self,
        each: &mut dyn FnMut(Tensor) -> Result<Tensor, TorchError>,
    ) -> Result<Self, TorchError> {
        self.try_map(each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_rows_and_numbers_become_two_tensors() {
        let (rows, numbers) =
            Stack::stack(vec![(vec![1_i64, 2], 3.0_f32), (vec![4, 5], 6.0)]).unwrap();
        assert_eq!((rows.size(), numbers.size()), (vec![2, 2], vec![2]));
        assert_eq!(rows.int64_value(&[1, 0]), 4);
    }

    /// In any form: dense or not, of one type or several, with a graph or without.
    #[test]
    fn what_is_stacked_one_by_one_is_what_is_stacked_at_once() {
        let float = tch::kind::FLOAT_CPU;
        let plain = |seed: i64| Tensor::arange(6, float).reshape([2, 3]) + seed;
        let lists = [
            vec![plain(0), plain(1), plain(2)],
            vec![
                plain(0),
                plain(1).transpose(0, 1).contiguous().transpose(0, 1),
            ],
            vec![plain(0), plain(1).to_kind(tch::Kind::Double), plain(2)],
            vec![plain(0), plain(5).set_requires_grad(true), plain(3)],
            vec![Tensor::from(3_i64), Tensor::from(4_i64)],
            vec![Tensor::zeros([0, 4], float), Tensor::zeros([0, 4], float)],
        ];
        for items in lists {
            let copies = items.iter().map(Tensor::shallow_clone).collect();
            let wanted = <Tensor as Stack>::stack(copies).unwrap();
            let mut rows = Tensor::stacking(items.len());
            items.into_iter().for_each(|item| rows.push(item));
            let batch = rows.finish().unwrap();
            assert_eq!(
                (batch.kind(), batch.size(), batch.requires_grad()),
                (wanted.kind(), wanted.size(), wanted.requires_grad())
            );
            assert_eq!(batch, wanted);
        }
    }

    #[test]
    fn of_two_parts_that_do_not_fit_the_first_is_told() {
        let items = vec![
            (vec![1_i64], vec![1_i64]),
            (vec![1], vec![]),
            (vec![], vec![1]),
        ];
        let wanted = Stack::stack(items.clone()).unwrap_err();
        let mut pairs = <(Vec<i64>, Vec<i64>)>::stacking(items.len());
        items.into_iter().for_each(|item| pairs.push(item));
        let error = pairs.finish().unwrap_err().to_string();
        assert_eq!(error, wanted.to_string());
        assert!(error.contains("item 2 has 0 numbers"), "{error}");
    }

    #[test]
    fn items_of_different_sizes_are_named() {
        let error = Stack::stack(vec![vec![1_i64, 2], vec![3]]).unwrap_err();
        assert!(
            error.to_string().contains("item 1 has 1 numbers"),
            "{error}"
        );
        let shapes: [&[i64]; 2] = [&[2, 3], &[3, 2]];
        let tensors = shapes.map(|shape| Tensor::zeros(shape, tch::kind::FLOAT_CPU));
        let error = Stack::stack(tensors.into()).unwrap_err();
        assert!(
            error.to_string().contains("[3, 2], the first one [2, 3]"),
            "{error}"
        );
    }
}
