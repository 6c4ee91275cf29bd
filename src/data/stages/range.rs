//! Part of the items.

use crate::data::{DataError, Place, Source};

/// The items of a range of numbers, in their order.
#[derive(Debug, Clone)]
pub struct Range<S> {
    pub(in crate::data) source: S,
    pub(in crate::data) range: std::ops::Range<usize>,
}

impl<S: Source> Source for Range<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        self.range.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<S::Item, DataError> {
        self.source.get(epoch, self.range.start + index)
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.source.place(epoch, self.range.start + index)
    }

    fn identity(&self) -> String {
        let std::ops::Range { start, end } = self.range;
        format!("{}, of these {start} to {end}", self.source.identity())
    }
}
