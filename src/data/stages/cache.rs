//! A cache of items in memory.

use std::fmt;
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::{DataError, Place, Source, Store};

/// An item that is made once.
#[derive(Default)]
struct Kept {
    bytes: OnceLock<Box<[u8]>>,
    /// Held while the item is made: at the end of an epoch, another worker may already request it for
    /// the next one.
    making: Mutex<()>,
}

/// Items that are made once, in the first epoch, and cached in memory as bytes.
pub struct MemoryCache<S> {
    source: S,
    /// `None` if there are more items than memory can index.
    items: Option<Box<[Kept]>>,
}

impl<S: fmt::Debug> fmt::Debug for MemoryCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = self.items.as_deref().unwrap_or_default();
        let there = items.iter().filter(|item| item.bytes.get().is_some());
        f.debug_struct("MemoryCache")
            .field("source", &self.source)
            .field("cached", &there.count())
            .finish_non_exhaustive()
    }
}

impl<S: Source> MemoryCache<S> {
    pub(crate) fn new(source: S) -> Self {
        let items = table(source.len(), Kept::default);
        Self { source, items }
    }
}

/// Makes a table of so many items, if there is enough memory.
pub(super) fn table<T>(items: usize, empty: impl FnMut() -> T) -> Option<Box<[T]>> {
    let mut table = Vec::new();
    table.try_reserve_exact(items).ok()?;
    table.resize_with(items, empty);
    Some(table.into())
}

/// The error if a table of the items does not fit into memory.
pub(super) fn without_end(source: &impl Source) -> DataError {
    DataError::Settings(format!(
        "{} cannot be cached: there are {} items, if not without end, and none comes twice; put \
         the cache before what makes them so many",
        source.identity(),
        source.len()
    ))
}

impl<S: Source<Item: Store>> Source for MemoryCache<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        self.source.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<S::Item, DataError> {
        let failed = |source| DataError::Item {
            place: self.place(epoch, index),
            source,
        };
        let items = self.items.as_ref();
        let items = items.ok_or_else(|| without_end(&self.source))?;
        let kept = &items[index];
        let there = || {
            let bytes = kept.bytes.get()?;
            Some(S::Item::take(&mut &bytes[..]).map_err(failed))
        };
        if let Some(item) = there() {
            return item;
        }
        let _making = kept.making.lock();
        if let Some(item) = there() {
            return item;
        }
        // Always from epoch 0: a resumed run must find the same items as the first one.
        let item = self.source.get(0, index)?;
        let mut bytes = Vec::new();
        item.put(&mut bytes).map_err(failed)?;
        // No other thread makes it meanwhile.
        let _ = kept.bytes.set(bytes.into());
        Ok(item)
    }

    fn place(&self, _: u64, index: usize) -> Place {
        self.source.place(0, index)
    }

    fn identity(&self) -> String {
        self.source.identity()
    }
}
