//! Items that a function chooses.

use super::ordered::Ordered;
use super::orders::Subset;
use super::walk::walk;
use crate::{DataError, Dataset, Source};

impl<S: Source> Dataset<S> {
    /// The items for which `keep` is true.
    ///
    /// How many these are, and which number each has, is known before anything is loaded: all items
    /// of the first epoch are made once now, on all cores, and the numbers of those that are kept stay
    /// in memory, 8 bytes each. So a filter of what is read fast comes first, and random
    /// transformations come behind it. An item that cannot be made is kept, for the loader to
    /// tell or to skip.
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
    /// `keep` fails or panics, at which item; or the source has no end.
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
