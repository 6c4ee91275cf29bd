//! What data is: items that can be made in any order.

use std::ops::ControlFlow;
use std::sync::Arc;

use tch::Tensor;

use super::{DataError, Place};

/// What a source shows its items to, as it makes them; it stops at the first `Break`.
pub type Each<'a, T> = &'a mut dyn FnMut(Result<T, DataError>) -> ControlFlow<()>;

/// A batch that was gathered in one pass: of the shape and the kinds that its items stack to.
#[derive(Debug)]
pub enum Gathered {
    /// Of tensors, numbers, or rows of numbers.
    Tensor(Tensor),
    /// Of pairs.
    Pair(Box<Gathered>, Box<Gathered>),
}

impl Gathered {
    /// Both sides of pairs.
    pub fn pair(left: Self, right: Self) -> Self {
        Self::Pair(Box::new(left), Box::new(right))
    }
}

/// Numbered items, each of which can be made by itself, on any thread.
///
/// Everything that a loader promises rests on this: as an item depends on nothing but
/// its epoch and its number, the order is the same whatever the number of threads,
/// and a position is two numbers.
pub trait Source: Send + Sync + 'static {
    /// What it is made of.
    type Item: Send + 'static;

    /// How many items an epoch has.
    fn len(&self) -> usize;

    /// Item `index` of an epoch. The same arguments give the same item.
    ///
    /// # Errors
    /// There is no such item, for whatever reason; a loader can skip it.
    fn get(&self, epoch: u64, index: usize) -> Result<Self::Item, DataError>;

    /// Makes items of an epoch, in the order of these indices, and shows each as it comes: what
    /// [`Source::get`] gives for each, which is what this calls by default. A source that makes
    /// many at once faster, with fewer reads say, does so here.
    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, Self::Item>) -> ControlFlow<()> {
        (indices.iter()).try_for_each(|&index| each(self.get(epoch, index)))
    }

    /// The items of these indices as one batch, the same as if each were made and all were stacked;
    /// for sources that gather them in one pass. By default, and where one of them cannot be made,
    /// none: they are then made one by one, which tells which one is bad.
    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        let _ = (epoch, indices);
        None
    }

    /// Where that item comes from, for messages.
    fn place(&self, epoch: u64, index: usize) -> Place {
        let _ = epoch;
        Place::Item(index)
    }

    /// What a saved position depends on, in words: numbers of items, seeds, windows. A
    /// position is taken up again only where this is the same.
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

/// A source of `len` items that a function makes.
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
    /// `make` gives the item of a number below `len`, always the same for the same number.
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
