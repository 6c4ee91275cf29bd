//! What data is: items that can be made in any order.

use std::sync::Arc;

use super::{DataError, Place};

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
