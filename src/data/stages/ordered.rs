//! Reordering of a source's items.

use std::ops::ControlFlow;

use crate::source::{Each, Gathered};
use crate::{DataError, Dataset, Place, Source};

/// Maps each place of an epoch to an item of a source: a sampler, a subset or a permutation.
///
/// A place must not depend on earlier ones, so that a loader can start anywhere in the order.
///
/// ```
/// use gpipe::data::{Dataset, Made, Order};
///
/// struct Backwards(usize);
///
/// impl Order for Backwards {
///     fn count(&self) -> usize {
///         self.0
///     }
///     fn origin(&self, epoch: u64, place: usize) -> (u64, usize) {
///         (epoch, self.0 - 1 - place)
///     }
///     fn identity(&self) -> String {
///         "backwards".to_owned()
///     }
/// }
///
/// let numbers = Dataset::new(Made::new(3, |n| Ok(n as i64))).ordered(Backwards(3));
/// let batch = numbers.batch(3).load()?.next().expect("three items")?;
/// assert_eq!(Vec::<i64>::try_from(batch)?, [2, 1, 0]);
/// # Ok::<(), anyhow::Error>(())
/// ```
pub trait Order: Send + Sync + 'static {
    /// Returns the number of places per epoch.
    fn count(&self) -> usize;

    /// Returns the epoch and index of the source's item at a place below [`Order::count`]. The same
    /// arguments give the same item.
    fn origin(&self, epoch: u64, place: usize) -> (u64, usize);

    /// Describes everything that the order depends on, as [`Source::identity`] does.
    fn identity(&self) -> String;
}

/// The items of a source in another order.
#[derive(Debug, Clone)]
pub struct Ordered<S, O> {
    pub(super) source: S,
    pub(super) order: O,
}

impl<S: Source> Dataset<S> {
    /// Reorders the items by a custom order.
    pub fn ordered<O: Order>(self, order: O) -> Dataset<Ordered<S, O>> {
        let source = self.source;
        Dataset::new(Ordered { source, order })
    }
}

impl<S: Source, O: Order> Ordered<S, O> {
    fn origin(&self, epoch: u64, index: usize) -> Result<(u64, usize), DataError> {
        let (of, origin) = self.order.origin(epoch, index);
        if origin < self.source.len() {
            return Ok((of, origin));
        }
        Err(DataError::Bad {
            place: Place::Item(index),
            what: format!(
                "the order has item {origin} here, but there are {}",
                self.source.len()
            ),
        })
    }
}

impl<S: Source, O: Order> Source for Ordered<S, O> {
    type Item = S::Item;

    fn len(&self) -> usize {
        self.order.count()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<S::Item, DataError> {
        let (epoch, origin) = self.origin(epoch, index)?;
        self.source.get(epoch, origin)
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, S::Item>) -> ControlFlow<()> {
        let mut run = Vec::new();
        let mut own = None;
        for &index in indices {
            let origin = self.origin(epoch, index);
            let next = origin.as_ref().ok().map(|(epoch, _)| *epoch);
            if next != own
                && let Some(epoch) = own
            {
                self.source.batch(epoch, &run, &mut *each)?;
                run.clear();
            }
            own = next;
            match origin {
                Ok((_, origin)) => run.push(origin),
                Err(error) => each(Err(error))?,
            }
        }
        match own {
            Some(epoch) => self.source.batch(epoch, &run, each),
            None => ControlFlow::Continue(()),
        }
    }

    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        let first = self.origin(epoch, *indices.first()?).ok()?.0;
        let origins = indices.iter().map(|&index| {
            let (of, origin) = self.origin(epoch, index).ok()?;
            (of == first).then_some(origin)
        });
        let origins = origins.collect::<Option<Vec<_>>>()?;
        self.source.gather(first, &origins)
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        match self.origin(epoch, index) {
            Ok((epoch, origin)) => self.source.place(epoch, origin),
            Err(_) => Place::Item(index),
        }
    }

    fn identity(&self) -> String {
        format!("{}, {}", self.source.identity(), self.order.identity())
    }
}
