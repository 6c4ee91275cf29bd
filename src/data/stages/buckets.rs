//! Batches of items of similar length.

use super::ordered::{Order, Ordered};
use super::shuffle::permuted;
use super::walk::walk;
use crate::{DataError, Dataset, Source};
use gpipe_torch::mix;

/// Batches from one bucket each, reshuffled in each epoch: [`Dataset::bucket_by_length`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buckets {
    lists: Vec<Bucket>,
    /// Items per batch.
    size: usize,
    /// Number of whole batches in all buckets.
    batches: usize,
    /// Number of items in all buckets.
    count: usize,
    seed: u64,
    sum: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Bucket {
    items: Vec<usize>,
    /// Number of whole batches in the bucket, and in the buckets before it.
    batches: usize,
    before: usize,
    /// Items outside whole batches in the buckets before it.
    rest: usize,
}

impl Buckets {
    fn new(lengths: &[usize], bounds: &[usize], size: usize, seed: u64) -> Self {
        let mut buckets = vec![Bucket::default(); bounds.len() + 1];
        let mut sum = 0;
        for (item, length) in lengths.iter().enumerate() {
            let bucket = bounds.partition_point(|bound| bound < length);
            sum = crc32c::crc32c_append(sum, &(bucket as u64).to_le_bytes());
            buckets[bucket].items.push(item);
        }
        let (mut before, mut rest) = (0, 0);
        for bucket in &mut buckets {
            bucket.batches = bucket.items.len() / size;
            (bucket.before, bucket.rest) = (before, rest);
            before += bucket.batches;
            rest += bucket.items.len() % size;
        }
        Self {
            lists: buckets,
            size,
            batches: before,
            count: lengths.len(),
            seed,
            sum,
        }
    }

    /// Returns the bucket of a place, and which of its items is there in an epoch's order.
    fn find(&self, place: usize, key: u64) -> (usize, usize) {
        let (batch, at) = (place / self.size, place % self.size);
        if batch < self.batches {
            let drawn = permuted(batch as u64, self.batches as u64, key) as usize;
            let bucket = self.lists.partition_point(|own| own.before <= drawn) - 1;
            return (bucket, (drawn - self.lists[bucket].before) * self.size + at);
        }
        let rest = place - self.batches * self.size;
        let bucket = self.lists.partition_point(|own| own.rest <= rest) - 1;
        let own = &self.lists[bucket];
        (bucket, own.batches * self.size + rest - own.rest)
    }
}

impl Order for Buckets {
    fn count(&self) -> usize {
        self.count
    }

    fn origin(&self, epoch: u64, place: usize) -> (u64, usize) {
        let key = mix(self.seed, epoch);
        let (bucket, number) = self.find(place, key);
        let items = &self.lists[bucket].items;
        let key = mix(key, bucket as u64 + 1);
        let drawn = permuted(number as u64, items.len() as u64, key);
        (epoch, items[drawn as usize])
    }

    fn identity(&self) -> String {
        let Self {
            lists,
            size,
            seed,
            sum,
            ..
        } = self;
        format!(
            "shuffled with seed {seed} in {} buckets for batches of {size} with checksum {sum:08x}",
            lists.len()
        )
    }
}

impl<S: Source> Dataset<S> {
    /// Shuffles so that the items of a batch have similar lengths, and batches little padding: items up
    /// to the first of `bounds` form a bucket, those above it up to the second another, and so on. Each
    /// batch of `size` is from one bucket; order and items are drawn anew in every epoch. Items that do
    /// not fill a batch of their bucket come at the end of the epoch, from short to long.
    ///
    /// Use it before a batch of the same `size`. All lengths are determined first, on all cores; 8
    /// bytes per item stay in memory. An item that cannot be made has length 0.
    ///
    /// ```
    /// use gpipe::data::{Dataset, Made, pad};
    ///
    /// let rows = Dataset::new(Made::new(100, |n| Ok(vec![n as i64; 1 + n % 30])));
    /// let bucketed = rows.bucket_by_length(&[10, 20], 8, 7, |row| row.len())?;
    /// for batch in bucketed.batch_with(8, |rows| pad(&rows, 0, 1)).load()? {
    ///     let batch = batch?;
    ///     assert_eq!(batch.rows.size(), batch.mask.size());
    /// }
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// `bounds` are not increasing, `size` is 0, `length` panics, or the source has no end.
    pub fn bucket_by_length<F>(
        self,
        bounds: &[usize],
        size: usize,
        seed: u64,
        length: F,
    ) -> Result<Dataset<Ordered<S, Buckets>>, DataError>
    where
        F: Fn(&S::Item) -> usize + Sync,
    {
        if size == 0 || !bounds.is_sorted_by(|one, next| one < next) {
            return Err(DataError::Settings(format!(
                "buckets up to the lengths {bounds:?} for batches of {size} cannot be: lengths rise, \
                 and a batch has at least 1 item"
            )));
        }
        let lengths = walk(&self.source, "a bucket", |item| {
            Ok(item.map_or(0, |item| length(&item)))
        })?;
        Ok(self.ordered(Buckets::new(&lengths, bounds, size, seed)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_item_comes_once_and_whole_batches_are_of_one_bucket(
            lengths in prop::collection::vec(0_usize..50, 0..200),
            bounds in prop::collection::btree_set(0_usize..50, 0..5),
            size in 1_usize..9, seed: u64, epoch in 0_u64..3,
        ) {
            let bounds: Vec<usize> = bounds.into_iter().collect();
            let order = Buckets::new(&lengths, &bounds, size, seed);
            let items = (0..order.count()).map(|place| order.origin(epoch, place).1);
            let items: Vec<usize> = items.collect();
            let bucket = |item: &usize| bounds.partition_point(|bound| *bound < lengths[*item]);
            let (whole, rest) = items.split_at(order.batches * size);
            for batch in whole.chunks(size) {
                prop_assert!(batch.iter().all(|item| bucket(item) == bucket(&batch[0])));
            }
            prop_assert!(rest.is_sorted_by_key(bucket));
            prop_assert!(rest.len() <= (bounds.len() + 1) * (size - 1));
            let mut sorted = items.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..lengths.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn epochs_have_orders_of_their_own() {
        let lengths: Vec<usize> = (0..100).map(|item| item % 10).collect();
        let order = Buckets::new(&lengths, &[4], 5, 1);
        let epoch =
            |epoch| -> Vec<usize> { (0..100).map(|own| order.origin(epoch, own).1).collect() };
        assert_ne!(epoch(0), epoch(1));
        assert_eq!(epoch(1), epoch(1));
    }
}
