//! Sources: data whose items can be made in any order.

use std::ops::ControlFlow;
use std::sync::Arc;

use tch::Tensor;

use super::{DataError, Place};

/// Callback that a source passes its items to; returning `Break` stops the source.
pub type Each<'a, T> = &'a mut dyn FnMut(Result<T, DataError>) -> ControlFlow<()>;

/// A batch gathered in one pass, of the shape and types that its items would stack to.
#[derive(Debug)]
pub enum Gathered {
    /// A batch of tensors, numbers, or vectors of numbers.
    Tensor(Tensor),
    /// A batch of pairs.
    Pair(Box<Gathered>, Box<Gathered>),
}

impl Gathered {
    /// Makes a batch of pairs.
    pub fn pair(left: Self, right: Self) -> Self {
        Self::Pair(Box::new(left), Box::new(right))
    }
}

/// Indexed items, each of which can be made independently, on any thread.
///
/// All guarantees of a loader rest on this: as an item depends only on its epoch and index, the order
/// does not depend on the number of threads, and a position is two numbers.
pub trait Source: Send + Sync + 'static {
    /// Type of an item.
    type Item: Send + 'static;

    /// Returns the number of items per epoch.
    fn len(&self) -> usize;

    /// Returns item `index` of an epoch. The same arguments give the same item.
    ///
    /// # Errors
    /// The item cannot be made; a loader can skip it.
    fn get(&self, epoch: u64, index: usize) -> Result<Self::Item, DataError>;

    /// Makes the items of an epoch with these indices, in this order, and passes each to `each` as soon
    /// as it is made. By default, calls [`Source::get`] for each. A source that makes many items faster
    /// at once, for example with fewer reads, overrides this.
    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, Self::Item>) -> ControlFlow<()> {
        (indices.iter()).try_for_each(|&index| each(self.get(epoch, index)))
    }

    /// Returns the items of these indices as one batch, as if they were made one by one and stacked;
    /// for sources that can gather them in one pass. `None` by default, and if an item fails: they are
    /// then made one by one, to find the bad one.
    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        let _ = (epoch, indices);
        None
    }

    /// Returns the origin of an item, for messages.
    fn place(&self, epoch: u64, index: usize) -> Place {
        let _ = epoch;
        Place::Item(index)
    }

    /// Describes everything that a saved position depends on: numbers of items, seeds, windows. A
    /// position can be resumed only if this is equal.
    fn identity(&self) -> String;

    /// Whether an epoch has no items.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<S: Source + ?Sized> Source for Arc<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Self::Item, DataError> {
        (**self).get(epoch, index)
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, S::Item>) -> ControlFlow<()> {
        (**self).batch(epoch, indices, each)
    }

    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        (**self).gather(epoch, indices)
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        (**self).place(epoch, index)
    }

    fn identity(&self) -> String {
        (**self).identity()
    }
}

/// A source of `len` items made by a function.
#[derive(Clone, Copy)]
pub struct Made<F> {
    len: usize,
    make: F,
}

impl<F> std::fmt::Debug for Made<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Made")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<F> Made<F> {
    /// Makes a source of `make`, called with indices below `len`; it must return the same item for the
    /// same index.
    pub fn new<T>(len: usize, make: F) -> Self
    where
        F: Fn(usize) -> anyhow::Result<T>,
    {
        Self { len, make }
    }
}

impl<T, F> Source for Made<F>
where
    T: Send + 'static,
    F: Fn(usize) -> anyhow::Result<T> + Send + Sync + 'static,
{
    type Item = T;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, _: u64, index: usize) -> Result<T, DataError> {
        (self.make)(index).map_err(|source| DataError::Item {
            place: Place::Item(index),
            source,
        })
    }

    fn identity(&self) -> String {
        format!("{} items", self.len)
    }
}
