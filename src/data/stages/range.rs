//! A range of a source's items.

use std::ops::ControlFlow;

use crate::source::{Each, Gathered};
use crate::{DataError, Place, Source};

/// The items of an index range, in order.
#[derive(Debug, Clone)]
pub struct Range<S> {
    pub(crate) source: S,
    pub(crate) range: std::ops::Range<usize>,
}

impl<S> Range<S> {
    fn origins(&self, indices: &[usize]) -> Vec<usize> {
        let start = self.range.start;
        indices.iter().map(|index| start + index).collect()
    }
}

impl<S: Source> Source for Range<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        self.range.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<S::Item, DataError> {
        self.source.get(epoch, self.range.start + index)
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, S::Item>) -> ControlFlow<()> {
        self.source.batch(epoch, &self.origins(indices), each)
    }

    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        self.source.gather(epoch, &self.origins(indices))
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.source.place(epoch, self.range.start + index)
    }

    fn identity(&self) -> String {
        let std::ops::Range { start, end } = self.range;
        format!("{}, of these {start} to {end}", self.source.identity())
    }
}
