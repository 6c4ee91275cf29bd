//! Pairs of two sources' items.

use crate::source::Gathered;
use crate::{DataError, Place, Source};

/// Pairs of items with the same index.
#[derive(Debug, Clone)]
pub struct Zip<A, B> {
    pub(crate) left: A,
    pub(crate) right: B,
}

impl<A: Source, B: Source> Source for Zip<A, B> {
    type Item = (A::Item, B::Item);

    fn len(&self) -> usize {
        self.left.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Self::Item, DataError> {
        let left = self.left.get(epoch, index)?;
        Ok((left, self.right.get(epoch, index)?))
    }

    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        let left = self.left.gather(epoch, indices)?;
        let right = self.right.gather(epoch, indices)?;
        Some(Gathered::pair(left, right))
    }

    /// Returns the place of the left item.
    fn place(&self, epoch: u64, index: usize) -> Place {
        self.left.place(epoch, index)
    }

    fn identity(&self) -> String {
        format!(
            "({}) with ({})",
            self.left.identity(),
            self.right.identity()
        )
    }
}
