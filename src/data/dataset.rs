//! A source with a chain of transformations.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;

use super::loader::Making;
use super::source::{Each, Gathered};
use super::stages::{FileCache, Map, MapRandom, MemoryCache, Range, Shuffle, Zip};
use super::{Batches, DataError, Phase, Place, Random, Source, Stack, Store};

/// Items with a chain of transformations, up to batches.
///
/// A chain is only a description: nothing is read before [`Batches::load`], and then on the loader's
/// threads.
///
/// ```
/// use gpipe::data::{Dataset, Made};
///
/// let squares = Dataset::new(Made::new(10, |number| Ok(number as i64)))
///     .map(|number| Ok(number * number))
///     .shuffle(usize::MAX, 7)
///     .batch(4)
///     .workers(2);
/// for batch in squares.load()? {
///     println!("{:?}", Vec::<i64>::try_from(&batch?)?);
/// }
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Clone)]
pub struct Dataset<S> {
    pub(super) source: S,
}

impl<S: Source> fmt::Debug for Dataset<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dataset({})", self.source.identity())
    }
}

impl<S: Source> Dataset<S> {
    /// Makes a chain of a source's items.
    pub fn new(source: S) -> Self {
        Self { source }
    }

    /// Applies a function to each item on the loader's workers: decoding or transforming.
    ///
    /// The function must give the same result for the same item; random numbers belong in
    /// [`Dataset::map_random`]. Its errors and panics are reported with the item's place.
    pub fn map<T, F>(self, function: F) -> Dataset<Map<S, F>>
    where
        T: Send + 'static,
        F: Fn(S::Item) -> anyhow::Result<T> + Send + Sync + 'static,
    {
        self.mapped(function, Phase::Map)
    }

    /// Like [`Dataset::map`]; [`Loader::diagnosis`](super::Loader::diagnosis) reports it as decoding
    /// bytes to items.
    pub fn decode<T, F>(self, function: F) -> Dataset<Map<S, F>>
    where
        T: Send + 'static,
        F: Fn(S::Item) -> anyhow::Result<T> + Send + Sync + 'static,
    {
        self.mapped(function, Phase::Decode)
    }

    fn mapped<T, F>(self, function: F, phase: Phase) -> Dataset<Map<S, F>>
    where
        T: Send + 'static,
        F: Fn(S::Item) -> anyhow::Result<T> + Send + Sync + 'static,
    {
        let source = self.source;
        Dataset::new(Map {
            source,
            function,
            phase,
        })
    }

    /// Like [`Dataset::map`], with random numbers that depend on the seed, the item and the epoch, but
    /// not on the number of workers.
    pub fn map_random<T, F>(self, seed: u64, function: F) -> Dataset<MapRandom<S, F>>
    where
        T: Send + 'static,
        F: Fn(S::Item, &mut Random) -> anyhow::Result<T> + Send + Sync + 'static,
    {
        let source = self.source;
        Dataset::new(MapRandom {
            source,
            function,
            seed,
        })
    }

    /// Pairs items with those of another chain.
    ///
    /// # Errors
    /// The lengths differ.
    pub fn zip<B: Source>(self, other: Dataset<B>) -> Result<Dataset<Zip<S, B>>, DataError> {
        let (left, right) = (self.source, other.source);
        if left.len() != right.len() {
            return Err(DataError::Settings(format!(
                "as many items are needed on both sides: there are {} and {}",
                left.identity(),
                right.identity()
            )));
        }
        Ok(Dataset::new(Zip { left, right }))
    }

    /// Takes the items of an index range: for example, the first nine tenths for training.
    ///
    /// # Errors
    /// The range is out of bounds.
    pub fn range(self, range: std::ops::Range<usize>) -> Result<Dataset<Range<S>>, DataError> {
        let source = self.source;
        if range.start > range.end || range.end > source.len() {
            return Err(DataError::Settings(format!(
                "there are no items {} to {}: there are {}",
                range.start,
                range.end,
                source.identity()
            )));
        }
        Ok(Dataset::new(Range { source, range }))
    }

    /// Caches each item in memory once it is made; earlier stages run only once.
    ///
    /// Random transformations and shuffles before the cache are fixed to those of the first epoch: put
    /// them after it.
    pub fn cache(self) -> Dataset<MemoryCache<S>>
    where
        S::Item: Store,
    {
        Dataset::new(MemoryCache::new(self.source))
    }

    /// Like [`Dataset::cache`], in a file that later runs reuse.
    ///
    /// The file records the source data, but not the transformations: delete it when they change.
    ///
    /// # Errors
    /// The file cannot be written, is incomplete, or is of other data.
    pub fn cache_file(self, path: impl AsRef<Path>) -> Result<Dataset<FileCache<S>>, DataError>
    where
        S::Item: Store,
    {
        Ok(Dataset::new(FileCache::open(self.source, path.as_ref())?))
    }

    /// Shuffles each epoch differently, moving items only within windows of `window` items;
    /// `usize::MAX` for a full shuffle.
    ///
    /// No items are held, regardless of the window; a small window keeps reads close together.
    #[must_use]
    pub fn shuffle(self, window: usize, seed: u64) -> Dataset<Shuffle<S>> {
        let (source, window) = (self.source, window.max(1));
        Dataset::new(Shuffle {
            source,
            window,
            seed,
        })
    }

    /// Makes batches of `size` items; the last of an epoch may have fewer.
    pub fn batch(self, size: usize) -> Batches<S, <S::Item as Stack>::Batch>
    where
        S::Item: Stack,
    {
        Batches::new(self.source, size, Making::stacked())
    }

    /// Like [`Dataset::batch`], with a function that makes batches on the workers: for example, padding
    /// to the longest.
    pub fn batch_with<B, F>(self, size: usize, collate: F) -> Batches<S, B>
    where
        B: Send + 'static,
        F: Fn(Vec<S::Item>) -> anyhow::Result<B> + Send + Sync + 'static,
    {
        Batches::new(self.source, size, Making::by(collate))
    }
}

impl<S: Source> Source for Dataset<S> {
    type Item = S::Item;

    fn len(&self) -> usize {
        self.source.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<S::Item, DataError> {
        self.source.get(epoch, index)
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, S::Item>) -> ControlFlow<()> {
        self.source.batch(epoch, indices, each)
    }

    fn gather(&self, epoch: u64, indices: &[usize]) -> Option<Gathered> {
        self.source.gather(epoch, indices)
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.source.place(epoch, index)
    }

    fn identity(&self) -> String {
        self.source.identity()
    }
}
