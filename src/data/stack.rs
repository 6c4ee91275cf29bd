//! Items into a batch.

use tch::Tensor;

use crate::{TorchError, Values};

/// What batches are made of: items that stack to tensors whose dimension 0 is the items.
///
/// Tensors stack to a tensor, numbers to a vector, rows of numbers to a matrix, pairs to
/// the pair of what their parts stack to.
pub trait Stack: Sized {
    /// Many of them.
    type Batch: Send + 'static;

    /// Stacks them in order.
    ///
    /// # Errors
    /// They are of different sizes.
    fn stack(items: Vec<Self>) -> anyhow::Result<Self::Batch>;
}

impl Stack for Tensor {
    type Batch = Tensor;

    fn stack(items: Vec<Self>) -> anyhow::Result<Tensor> {
        let first = items.first().map(Tensor::size).unwrap_or_default();
        if let Some(place) = items.iter().position(|item| item.size() != first) {
            anyhow::bail!(
                "item {place} has the shape {:?}, the first one {first:?}: make them the same size in `map`",
                items[place].size()
            );
        }
        Ok(Tensor::f_stack(&items, 0).map_err(TorchError::from)?)
    }
}

impl<A: Stack, B: Stack> Stack for (A, B) {
    type Batch = (A::Batch, B::Batch);

    fn stack(items: Vec<Self>) -> anyhow::Result<Self::Batch> {
        let (left, right) = items.into_iter().unzip();
        Ok((A::stack(left)?, B::stack(right)?))
    }
}

/// Numbers that tensors are made of.
pub trait Number: tch::kind::Element + Copy + Send + 'static {}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Number for $number {}

        impl Stack for $number {
            type Batch = Tensor;

            fn stack(items: Vec<Self>) -> anyhow::Result<Tensor> {
                Ok(Tensor::f_from_slice(&items).map_err(TorchError::from)?)
            }
        }
    )*};
}

numbers!(u8, i8, i16, i32, i64, f32, f64, bool);

impl<T: Number> Stack for Vec<T> {
    type Batch = Tensor;

    fn stack(items: Vec<Self>) -> anyhow::Result<Tensor> {
        let (rows, columns) = (items.len(), items.first().map_or(0, Vec::len));
        if let Some(place) = items.iter().position(|item| item.len() != columns) {
            anyhow::bail!(
                "item {place} has {} numbers, the first one {columns}: make them the same length in `map`",
                items[place].len()
            );
        }
        let all = Tensor::f_from_slice(&items.concat()).map_err(TorchError::from)?;
        let shape = [rows as i64, columns as i64];
        Ok(all.f_view(shape).map_err(TorchError::from)?)
    }
}

/// What can be brought to a device ahead of its use.
pub trait OnDevice: Sized {
    /// The same with other tensors: each is given to `each`, and what that gives takes its
    /// place.
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
