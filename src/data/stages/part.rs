//! A random part of a source.

use std::ops::ControlFlow;

use super::shuffle::permuted;
use crate::source::{Each, Gathered};
use crate::{DataError, Place, Source};
use gpipe_torch::mix;

/// Some items in a random order, the same for all epochs: parts of the same source and seed are
/// disjoint if their ranges are.
#[derive(Debug, Clone)]
pub struct RandomPart<S> {
    pub(crate) source: S,
    pub(crate) range: std::ops::Range<usize>,
    pub(crate) seed: u64,
}

/// Distinguishes this order from an epoch's.
const KEY: u64 = 0x7061_7274;

impl<S: Source> RandomPart<S> {
    pub(crate) fn origin(&self, index: usize) -> usize {
        let place = (self.range.start + index) as u64;
        permuted(place, self.source.len() as u64, mix(self.seed, KEY)) as usize
    }

    fn origins(&self, indices: &[usize]) -> Vec<usize> {
        indices.iter().map(|&index| self.origin(index)).collect()
    }
}

impl<S: Source> Source for RandomPart<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        self.range.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<S::Item, DataError> {
        self.source.get(epoch, self.origin(index))
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, S::Item>) -> ControlFlow<()> {
        self.source.batch(epoch, &self.origins(indices), each)
    }

    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        self.source.gather(epoch, &self.origins(indices))
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.source.place(epoch, self.origin(index))
    }

    fn identity(&self) -> String {
        let (std::ops::Range { start, end }, seed) = (self.range.clone(), self.seed);
        format!(
            "{}, of these {start} to {end} in an order of seed {seed}",
            self.source.identity()
        )
    }
}
