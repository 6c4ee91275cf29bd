//! Functions of items.

use std::fmt;
use std::ops::ControlFlow;

use crate::source::Each;
use crate::{DataError, Phase, Place, Random, Source};

/// Applies a function to each item.
#[derive(Clone, Copy)]
pub struct Map<S, F> {
    pub(crate) source: S,
    pub(crate) function: F,
    /// The phase that the function counts as.
    pub(crate) phase: Phase,
}

impl<S: fmt::Debug, F> fmt::Debug for Map<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl<S: Source, F> Map<S, F> {
    /// Returns the function applied to an item.
    fn of<T>(&self, epoch: u64, index: usize) -> impl FnOnce(S::Item) -> Result<T, DataError>
    where
        F: Fn(S::Item) -> anyhow::Result<T>,
    {
        move |item| {
            let made = self.phase.during(|| (self.function)(item));
            made.map_err(|source| DataError::Item {
                place: self.source.place(epoch, index),
                source,
            })
        }
    }
}

impl<S, F, T> Source for Map<S, F>
where
    S: Source,
    T: Send + 'static,
    F: Fn(S::Item) -> anyhow::Result<T> + Send + Sync + 'static,
{
    type Item = T;

    fn len(&self) -> usize {
        self.source.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<T, DataError> {
        self.source
            .get(epoch, index)
            .and_then(self.of(epoch, index))
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, T>) -> ControlFlow<()> {
        let mut next = indices.iter();
        self.source
            .batch(epoch, indices, &mut |item| match next.next() {
                Some(&index) => each(item.and_then(self.of(epoch, index))),
                None => ControlFlow::Break(()),
            })
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.source.place(epoch, index)
    }

    fn identity(&self) -> String {
        self.source.identity()
    }
}

/// Applies a function that draws random numbers to each item. The numbers depend on the item and the
/// epoch, but not on threads or on resuming.
#[derive(Clone, Copy)]
pub struct MapRandom<S, F> {
    pub(crate) source: S,
    pub(crate) function: F,
    pub(crate) seed: u64,
}

impl<S: fmt::Debug, F> fmt::Debug for MapRandom<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapRandom")
            .field("source", &self.source)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl<S: Source, F> MapRandom<S, F> {
    /// Returns the function applied to an item.
    fn of<T>(&self, epoch: u64, index: usize) -> impl FnOnce(S::Item) -> Result<T, DataError>
    where
        F: Fn(S::Item, &mut Random) -> anyhow::Result<T>,
    {
        move |item| {
            let mut random = Random::of_item(self.seed, epoch, index);
            let made = Phase::Map.during(|| (self.function)(item, &mut random));
            made.map_err(|source| DataError::Item {
                place: self.source.place(epoch, index),
                source,
            })
        }
    }
}

impl<S, F, T> Source for MapRandom<S, F>
where
    S: Source,
    T: Send + 'static,
    F: Fn(S::Item, &mut Random) -> anyhow::Result<T> + Send + Sync + 'static,
{
    type Item = T;

    fn len(&self) -> usize {
        self.source.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<T, DataError> {
        self.source
            .get(epoch, index)
            .and_then(self.of(epoch, index))
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, T>) -> ControlFlow<()> {
        let mut next = indices.iter();
        self.source
            .batch(epoch, indices, &mut |item| match next.next() {
                Some(&index) => each(item.and_then(self.of(epoch, index))),
                None => ControlFlow::Break(()),
            })
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.source.place(epoch, index)
    }

    fn identity(&self) -> String {
        format!(
            "{}, transformed with seed {}",
            self.source.identity(),
            self.seed
        )
    }
}
