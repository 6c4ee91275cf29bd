//! Sources that can only be read in order.

use std::collections::VecDeque;
use std::fmt;

use parking_lot::Mutex;

use super::{DataError, Place, Source};
use gpipe_torch::caught;

/// Items kept before the last requested one: workers take spans in order, but request them slightly out
/// of order.
const BEHIND: usize = 1 << 12;
/// Concurrent readings: the end of an epoch is requested along with the beginning of the next.
const READINGS: usize = 2;

/// The items of an iterator that a function creates for each epoch: a decoder, a generator, a query, or
/// any other source without random access.
///
/// All guarantees of a loader hold, as an item still depends only on its epoch and index, provided that
/// the function gives the same items for the same epoch. The cost: an item is reached by reading all
/// before it. A loader that reads in order passes through the iterator once per epoch, a resumed one
/// reads and drops the items before its position, and a `shuffle` over more than some thousand items
/// restarts again and again: put a `cache_file` between.
///
/// ```
/// use gpipe::data::{Dataset, Iterated};
///
/// let source = Iterated::new("squares", |epoch| {
///     Ok((1..=10).map(move |n| Ok(n * n + epoch as i64)))
/// })?;
/// let batches = Dataset::new(source).batch(5).epochs(2).workers(2);
/// let last = batches.load()?.last().expect("four batches")?;
/// assert_eq!(Vec::<i64>::try_from(last)?, [37, 50, 65, 82, 101]);
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct Iterated<T> {
    name: String,
    len: usize,
    begin: Begin<T>,
    readings: Mutex<VecDeque<Reading<T>>>,
}

type Items<T> = Box<dyn Iterator<Item = anyhow::Result<T>> + Send>;
type Begin<T> = Box<dyn Fn(u64) -> anyhow::Result<Items<T>> + Send + Sync>;

impl<T> fmt::Debug for Iterated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iterated")
            .field("name", &self.name)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A running iterator, and the items that it gave recently.
struct Reading<T> {
    epoch: u64,
    /// Index of its next item.
    next: usize,
    items: Items<T>,
    /// The last items before it; `None` for those already taken.
    behind: VecDeque<Option<anyhow::Result<T>>>,
}

impl<T: Send + 'static> Iterated<T> {
    /// Makes a source of the items of `begin`. Counts the items of the first epoch by iterating over
    /// all of them; every epoch must have as many. `name` identifies the data for saved positions.
    ///
    /// # Errors
    /// `begin` fails. An item that fails is counted; the loader reports or skips it.
    pub fn new<I, F>(name: impl Into<String>, begin: F) -> Result<Self, DataError>
    where
        I: Iterator<Item = anyhow::Result<T>> + Send + 'static,
        F: Fn(u64) -> anyhow::Result<I> + Send + Sync + 'static,
    {
        let mut source = Self::with_len(name, 0, begin);
        let count = caught(|| Ok((source.begin)(0)?.count()));
        source.len = count.map_err(|error| DataError::Item {
            place: Place::Item(0),
            source: error.context(format!("{} cannot be counted", source.name)),
        })?;
        Ok(source)
    }

    /// Like [`Iterated::new`], with a known number of items per epoch, or `usize::MAX` if there is no
    /// end. Further items are ignored, and missing ones are errors when requested.
    pub fn with_len<I, F>(name: impl Into<String>, len: usize, begin: F) -> Self
    where
        I: Iterator<Item = anyhow::Result<T>> + Send + 'static,
        F: Fn(u64) -> anyhow::Result<I> + Send + Sync + 'static,
    {
        Self {
            name: name.into(),
            len,
            begin: Box::new(move |epoch| Ok(Box::new(begin(epoch)?.fuse()))),
            readings: Mutex::default(),
        }
    }

    fn item(&self, epoch: u64, index: usize) -> anyhow::Result<T> {
        let mut readings = self.readings.lock();
        let place = readings.iter().position(|own| own.reaches(epoch, index));
        // Removed while reading: after a panic it must not be reused.
        let mut reading = match place.and_then(|place| readings.remove(place)) {
            Some(reading) => reading,
            None => Reading {
                epoch,
                next: 0,
                items: (self.begin)(epoch)?,
                behind: VecDeque::new(),
            },
        };
        let item = reading.item(index);
        if let Some(other) = readings.iter().position(|own| own.epoch == epoch) {
            readings.remove(other);
        }
        readings.truncate(READINGS - 1);
        readings.push_front(reading);
        item
    }
}

impl<T> Reading<T> {
    /// Whether an item is still kept, or is yet to come.
    fn reaches(&self, epoch: u64, index: usize) -> bool {
        let back = self.next.checked_sub(index);
        let there = back.is_none_or(|back| match self.behind.len().checked_sub(back) {
            Some(place) => self.behind.get(place).is_none_or(Option::is_some),
            None => false,
        });
        self.epoch == epoch && there
    }

    fn item(&mut self, index: usize) -> anyhow::Result<T> {
        if let Some(place) = (self.behind.len() + index).checked_sub(self.next)
            && let Some(kept) = self.behind.get_mut(place).and_then(Option::take)
        {
            return kept;
        }
        loop {
            let Some(item) = self.items.next() else {
                anyhow::bail!(
                    "there is no such item: there were {} in this epoch",
                    self.next
                );
            };
            let number = self.next;
            self.next += 1;
            let wanted = number == index;
            if self.behind.len() == BEHIND {
                self.behind.pop_front();
            }
            if wanted {
                self.behind.push_back(None);
                return item;
            }
            self.behind.push_back(Some(item));
        }
    }
}

impl<T: Send + 'static> Source for Iterated<T> {
    type Item = T;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, epoch: u64, index: usize) -> Result<T, DataError> {
        self.item(epoch, index).map_err(|source| DataError::Item {
            place: self.place(epoch, index),
            source: source.context(self.name.clone()),
        })
    }

    fn identity(&self) -> String {
        format!("{} items of {}", self.len, self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    fn numbers(len: u64) -> Iterated<u64> {
        Iterated::new("numbers", move |epoch| {
            Ok((0..len).map(move |n| Ok(n + 1000 * epoch)))
        })
        .unwrap()
    }

    proptest! {
        #[test]
        fn items_are_the_same_in_whatever_order_they_are_asked_for(
            asked in prop::collection::vec((0_u64..3, 0_usize..50), 1..60),
        ) {
            let source = numbers(50);
            for (epoch, index) in asked {
                prop_assert_eq!(source.get(epoch, index).unwrap(), index as u64 + 1000 * epoch);
            }
        }
    }

    /// Like a loader's workers: spans of two epochs, slightly out of order.
    #[test]
    fn an_epoch_is_gone_through_once_though_workers_ask_out_of_order() {
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let source = Iterated::with_len("numbers", 8000, move |epoch| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok((0..8000).map(move |n| Ok(n + epoch)))
        });
        for span in [1, 0, 3, 2, 5, 4, 7, 6] {
            for index in span * 1000..(span + 1) * 1000 {
                assert_eq!(source.get(0, index).unwrap(), index as u64);
            }
        }
        for (epoch, index) in [(1, 0), (0, 7999), (1, 1)] {
            assert_eq!(source.get(epoch, index).unwrap(), index as u64 + epoch);
        }
        // The last item of the first epoch had already been taken.
        assert_eq!(begun.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn errors_panics_and_an_early_end_belong_to_their_items() {
        let source = Iterated::with_len("things", 9, |_| {
            Ok((0..7).map(|n| {
                anyhow::ensure!(n != 2, "no two");
                Ok(n)
            }))
        });
        let error = |index| source.get(0, index).unwrap_err().to_string();
        assert_eq!(error(2), "item 2: things: no two");
        assert_eq!(source.get(0, 3).unwrap(), 3);
        assert!(
            error(8).contains("there were 7 in this epoch"),
            "{}",
            error(8)
        );
        let source = Iterated::with_len("things", 9, |_| {
            Ok((0..9).inspect(|n| assert!(*n != 4, "four")).map(Ok))
        });
        for _ in 0..2 {
            assert!(
                caught(|| Ok(source.get(0, 6)))
                    .unwrap_err()
                    .to_string()
                    .contains("four")
            );
            assert_eq!(source.get(0, 3).unwrap(), 3);
        }
    }
}
