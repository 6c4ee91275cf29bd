//! Shuffles each epoch, without holding items.

use std::ops::{ControlFlow, Range};

use crate::source::{Each, Gathered};
use crate::{DataError, Place, Source};
use gpipe_torch::mix;

/// Rounds of the Feistel network; four make it pseudo-random (Luby and Rackoff 1988), the others
/// compensate for the weak round function.
const ROUNDS: u64 = 8;

/// Items in an order determined by seed and epoch, each within its window.
///
/// An epoch is cut into windows, differently each time, and the items of a window are permuted. The
/// permutation is computed, not stored: a full shuffle costs nothing but scattered reads; a smaller
/// window keeps reads close together.
#[derive(Debug, Clone)]
pub struct Shuffle<S> {
    pub(crate) source: S,
    pub(crate) window: usize,
    pub(crate) seed: u64,
}

impl<S: Source> Shuffle<S> {
    fn origin(&self, epoch: u64, index: usize) -> usize {
        let key = mix(self.seed, epoch);
        let window = window(self.source.len(), self.window, key, index);
        let place = (index - window.start) as u64;
        let key = mix(key, window.start as u64);
        window.start + permuted(place, window.len() as u64, key) as usize
    }

    fn origins(&self, epoch: u64, indices: &[usize]) -> Vec<usize> {
        let origins = indices.iter().map(|&index| self.origin(epoch, index));
        origins.collect()
    }
}

/// Returns the window around an index; all windows have `size` items except the first and the last.
fn window(len: usize, size: usize, key: u64, index: usize) -> Range<usize> {
    if size >= len {
        return 0..len;
    }
    let first = (mix(key, 1) % size as u64) as usize;
    if index < first {
        return 0..first;
    }
    let start = first + (index - first) / size * size;
    start..len.min(start.saturating_add(size))
}

/// Returns the position of `index` in a permutation of `0..len`: a Feistel network over the next power
/// of four, iterated until the result is in range (Black and Rogaway 2002).
pub(super) fn permuted(index: u64, len: u64, key: u64) -> u64 {
    let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
    let half = bits.div_ceil(2).max(1);
    let mask = (1 << half) - 1;
    let network = |value: u64| {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..ROUNDS {
            let mixed = mix(mix(key, round), right) & mask;
            (left, right) = (right, left ^ mixed);
        }
        (left << half) | right
    };
    let mut place = network(index);
    while place >= len {
        place = network(place);
    }
    place
}

impl<S: Source> Source for Shuffle<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        self.source.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<S::Item, DataError> {
        self.source.get(epoch, self.origin(epoch, index))
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, S::Item>) -> ControlFlow<()> {
        self.source
            .batch(epoch, &self.origins(epoch, indices), each)
    }

    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        self.source.gather(epoch, &self.origins(epoch, indices))
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.source.place(epoch, self.origin(epoch, index))
    }

    fn identity(&self) -> String {
        let Self { window, seed, .. } = self;
        let window = if *window >= self.source.len() {
            String::new()
        } else {
            format!(" in windows of {window}")
        };
        format!(
            "{}, shuffled{window} with seed {seed}",
            self.source.identity()
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Made;

    fn order(len: usize, window: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let source = Made::new(len, Ok);
        let shuffle = Shuffle {
            source,
            window,
            seed,
        };
        (0..len).map(|index| shuffle.origin(epoch, index)).collect()
    }

    proptest! {
        #[test]
        fn every_item_comes_once_and_stays_in_its_window(
            len in 0_usize..400, window in 1_usize..100, seed: u64, epoch in 0_u64..5,
        ) {
            let order = order(len, window, seed, epoch);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..len).collect::<Vec<_>>());
            for (place, origin) in order.into_iter().enumerate() {
                prop_assert!(place.abs_diff(origin) < window);
            }
        }
    }

    #[test]
    fn seeds_and_epochs_have_orders_of_their_own() {
        let orders = [(1, 0), (1, 1), (2, 0)].map(|(seed, epoch)| order(100, 100, seed, epoch));
        assert_eq!(order(100, 100, 1, 0), orders[0]);
        assert!(orders[0] != orders[1] && orders[0] != orders[2]);
    }

    /// Each of five items reaches all places equally often over many seeds, within five standard
    /// deviations.
    #[test]
    fn places_are_equally_likely() {
        let (len, draws) = (5, 5000);
        let mut counts = [[0_i32; 5]; 5];
        for seed in 0..draws {
            for (place, origin) in order(len, len, seed, 0).into_iter().enumerate() {
                counts[origin][place] += 1;
            }
        }
        assert!(
            counts
                .iter()
                .flatten()
                .all(|count| (count - 1000).abs() < 142),
            "{counts:?}"
        );
    }
}
