//! Filters items by a function.

use super::ordered::Ordered;
use super::orders::Subset;
use super::walk::walk;
use crate::{DataError, Dataset, Source};

impl<S: Source> Dataset<S> {
    /// Keeps the items for which `keep` is true.
    ///
    /// The number and indices of these items are determined first: all items of the first epoch are
    /// made once, on all cores, and the indices of kept ones stay in memory, 8 bytes each. So filter
    /// items that are fast to read, and put random transformations after. An item that cannot be made
    /// is kept, for the loader to report or to skip.
    ///
    /// ```
    /// use gpipe::data::{Dataset, Made};
    ///
    /// let even = Dataset::new(Made::new(10, |n| Ok(n as i64))).filter(|n| Ok(n % 2 == 0))?;
    /// let batch = even.batch(10).load()?.next().expect("five items")?;
    /// assert_eq!(Vec::<i64>::try_from(batch)?, [0, 2, 4, 6, 8]);
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// `keep` fails or panics (the error names the item), or the source has no end.
    pub fn filter<F>(self, keep: F) -> Result<Dataset<Ordered<S, Subset>>, DataError>
    where
        F: Fn(&S::Item) -> anyhow::Result<bool> + Sync,
    {
        let kept = walk(&self.source, "a filter", |item| {
            item.map_or(Ok(true), |item| keep(&item))
        })?;
        let numbers = kept.iter().enumerate().filter(|(_, kept)| **kept);
        let numbers = numbers.map(|(number, _)| number).collect();
        Ok(self.ordered(Subset::new(numbers)))
    }
}
