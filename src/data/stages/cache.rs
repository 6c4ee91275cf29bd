//! Items that are made once and kept in memory.

use std::fmt;
use std::sync::OnceLock;

use crate::data::{DataError, Place, Source, Store};

/// Each item made once, those of the first epoch, and kept in memory as bytes.
pub struct MemoryCache<S> {
    source: S,
    items: Box<[OnceLock<Box<[u8]>>]>,
}

impl<S: fmt::Debug> fmt::Debug for MemoryCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let there = self.items.iter().filter(|item| item.get().is_some());
        f.debug_struct("MemoryCache")
            .field("source", &self.source)
            .field("cached", &there.count())
            .finish_non_exhaustive()
    }
}

impl<S: Source> MemoryCache<S> {
    pub(in crate::data) fn new(source: S) -> Self {
        let items = std::iter::repeat_with(OnceLock::new).take(source.len());
        let items = items.collect();
        Self { source, items }
    }
}

impl<S: Source<Item: Store>> Source for MemoryCache<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        self.items.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<S::Item, DataError> {
        let failed = |source| DataError::Item {
            place: self.place(epoch, index),
            source,
        };
        if let Some(bytes) = self.items[index].get() {
            return S::Item::take(&mut &bytes[..]).map_err(failed);
        }
        // Not of this epoch: a resumed run must find what the first one found.
        let item = self.source.get(0, index)?;
        let mut bytes = Vec::new();
        item.put(&mut bytes).map_err(failed)?;
        // Whoever was faster has put the same bytes.
        let _ = self.items[index].set(bytes.into());
        Ok(item)
    }

    fn place(&self, _: u64, index: usize) -> Place {
        self.source.place(0, index)
    }

    fn identity(&self) -> String {
        self.source.identity()
    }
}
