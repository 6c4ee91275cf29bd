//! Shards, repetition and subsets.

use super::ordered::{Order, Ordered};
use crate::{DataError, Dataset, Source};

/// Every `step`-th item from `first` on: [`Dataset::shard`], [`Dataset::stride`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stride {
    first: usize,
    step: usize,
    count: usize,
}

impl Order for Stride {
    fn count(&self) -> usize {
        self.count
    }

    fn origin(&self, epoch: u64, place: usize) -> (u64, usize) {
        (epoch, self.first + self.step * place)
    }

    fn identity(&self) -> String {
        let Self { first, step, count } = self;
        format!("of these {count}, each {step} behind the other, from {first} on")
    }
}

/// A repeated source, with another epoch each time: [`Dataset::repeat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeat {
    len: usize,
    times: usize,
}

impl Order for Repeat {
    fn count(&self) -> usize {
        self.len.saturating_mul(self.times)
    }

    fn origin(&self, epoch: u64, place: usize) -> (u64, usize) {
        let len = self.len.max(1);
        let first = epoch.wrapping_mul(self.times as u64);
        (first.wrapping_add((place / len) as u64), place % len)
    }

    fn identity(&self) -> String {
        format!("{} times", self.times)
    }
}

/// Items by index: [`Dataset::subset`], [`Dataset::filter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subset {
    numbers: Vec<usize>,
    sum: u32,
}

impl Subset {
    pub(super) fn new(numbers: Vec<usize>) -> Self {
        let sum = (numbers.iter()).fold(0, |sum, number| {
            crc32c::crc32c_append(sum, &(*number as u64).to_le_bytes())
        });
        Self { numbers, sum }
    }
}

impl Order for Subset {
    fn count(&self) -> usize {
        self.numbers.len()
    }

    fn origin(&self, epoch: u64, place: usize) -> (u64, usize) {
        (epoch, self.numbers[place])
    }

    fn identity(&self) -> String {
        let (count, sum) = (self.numbers.len(), self.sum);
        format!("{count} of these with checksum {sum:08x}")
    }
}

impl<S: Source> Dataset<S> {
    /// Takes the part of one of `of` replicas: items `replica`, `replica + of`, and so on. Every
    /// replica has as many, so that none waits for a batch that another does not have. Up to `of - 1`
    /// items at the end are left out: shuffle before, with the same seed in all replicas, so that the
    /// parts and the left-out items vary by epoch.
    ///
    /// # Errors
    /// There is no such replica, or there are fewer items than replicas.
    pub fn shard(
        self,
        replica: usize,
        of: usize,
    ) -> Result<Dataset<Ordered<S, Stride>>, DataError> {
        let count = self.source.len() / of.max(1);
        if replica < of && count == 0 {
            return Err(DataError::Settings(format!(
                "{} replicas are too many for {}: each needs an item",
                of,
                self.source.identity()
            )));
        }
        self.every(replica, of, count)
    }

    /// Takes items `first`, `first + step`, and so on to the end. Parts of the same `step` cover all
    /// items once; the first ones may have one item more.
    ///
    /// # Errors
    /// `first` is not below `step`.
    pub fn stride(
        self,
        first: usize,
        step: usize,
    ) -> Result<Dataset<Ordered<S, Stride>>, DataError> {
        let rest = self.source.len().saturating_sub(first);
        self.every(first, step, rest.div_ceil(step.max(1)))
    }

    fn every(
        self,
        first: usize,
        step: usize,
        count: usize,
    ) -> Result<Dataset<Ordered<S, Stride>>, DataError> {
        if first >= step {
            return Err(DataError::Settings(format!(
                "there is no part {first} of {step}: they are counted from 0"
            )));
        }
        Ok(self.ordered(Stride { first, step, count }))
    }

    /// Repeats all items so many times per epoch, each time in the order of another epoch of this
    /// chain. Useful before [`Dataset::mix`] if a source is small.
    #[must_use]
    pub fn repeat(self, times: usize) -> Dataset<Ordered<S, Repeat>> {
        let len = self.source.len();
        self.ordered(Repeat { len, times })
    }

    /// Takes the items of these indices, in this order; an index may occur several times.
    ///
    /// # Errors
    /// An index is out of range.
    pub fn subset(
        self,
        numbers: impl IntoIterator<Item = usize>,
    ) -> Result<Dataset<Ordered<S, Subset>>, DataError> {
        let (numbers, len): (Vec<_>, _) = (numbers.into_iter().collect(), self.source.len());
        if let Some(none) = numbers.iter().find(|number| **number >= len) {
            return Err(DataError::Settings(format!(
                "there is no item {none} for a subset of {}",
                self.source.identity()
            )));
        }
        Ok(self.ordered(Subset::new(numbers)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Made;

    fn numbers(len: usize) -> Dataset<impl Source<Item = usize>> {
        Dataset::new(Made::new(len, Ok))
    }

    fn all<S: Source<Item = usize>>(chain: &Dataset<S>, epoch: u64) -> Vec<usize> {
        let each = (0..chain.len()).map(|place| chain.get(epoch, place).unwrap());
        each.collect()
    }

    proptest! {
        #[test]
        fn strides_have_all_items_once_and_shards_as_many_each(
            len in 0_usize..200, of in 1_usize..9,
        ) {
            let mut strides: Vec<usize> = (0..of)
                .flat_map(|part| all(&numbers(len).stride(part, of).unwrap(), 0))
                .collect();
            strides.sort_unstable();
            prop_assert_eq!(strides, (0..len).collect::<Vec<_>>());
            if len < of {
                prop_assert!(numbers(len).shard(0, of).unwrap_err().is_wrong_use());
                return Ok(());
            }
            let shards = (0..of).map(|part| all(&numbers(len).shard(part, of).unwrap(), 3));
            let shards: Vec<Vec<usize>> = shards.collect();
            prop_assert!(shards.iter().all(|shard| shard.len() == len / of));
            let mut joined = shards.concat();
            joined.sort_unstable();
            prop_assert_eq!(joined, (0..len / of * of).collect::<Vec<_>>());
        }

        #[test]
        fn what_is_repeated_has_an_epoch_of_its_own_each_time(
            len in 1_usize..40, times in 1_usize..5, epoch in 0_u64..4,
        ) {
            let repeated = all(&numbers(len).shuffle(usize::MAX, 5).repeat(times), epoch);
            let once = numbers(len).shuffle(usize::MAX, 5);
            let epochs = (0..times).map(|time| all(&once, epoch * times as u64 + time as u64));
            prop_assert_eq!(repeated, epochs.collect::<Vec<_>>().concat());
        }
    }

    #[test]
    fn parts_that_cannot_be_are_refused() {
        let error = numbers(10).shard(2, 2).unwrap_err().to_string();
        assert!(error.contains("no part 2 of 2"), "{error}");
        assert!(numbers(10).stride(0, 0).is_err());
        let error = numbers(10).subset([3, 10]).unwrap_err().to_string();
        assert!(error.contains("no item 10"), "{error}");
        assert_eq!(all(&numbers(10).subset([3, 9, 3]).unwrap(), 0), [3, 9, 3]);
    }

    #[test]
    fn an_order_of_items_that_are_not_there_is_an_error_of_each_of_them() {
        struct Twice;
        impl Order for Twice {
            fn count(&self) -> usize {
                4
            }
            fn origin(&self, epoch: u64, place: usize) -> (u64, usize) {
                (epoch, 2 * place)
            }
            fn identity(&self) -> String {
                "twice".to_owned()
            }
        }
        let chain = numbers(4).ordered(Twice);
        let mut seen = Vec::new();
        let _ = chain.batch(0, &[0, 2, 1, 3], &mut |item| {
            seen.push(item.map_err(|error| error.to_string()));
            std::ops::ControlFlow::Continue(())
        });
        let bad = |place, origin| {
            Err(format!(
                "item {place}: the order has item {origin} here, but there are 4"
            ))
        };
        assert_eq!(seen, [Ok(0), bad(2, 4), Ok(2), bad(3, 6)]);
    }
}
