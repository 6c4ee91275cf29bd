//! Splits items into several.

use std::fmt;
use std::ops::ControlFlow;

use tch::Tensor;

use super::walk::walk;
use crate::source::Each;
use crate::{DataError, Dataset, Place, Source};

/// The parts of each item, as items: [`Dataset::flat_map`].
pub struct FlatMap<S, F> {
    source: S,
    function: F,
    /// Index of each item's first part, and the number of all parts.
    firsts: Vec<usize>,
    sum: u32,
}

impl<S: Source, F> fmt::Debug for FlatMap<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlatMap")
            .field("source", &self.source.identity())
            .field("items", &self.firsts.last())
            .finish_non_exhaustive()
    }
}

/// Items with several parts, such as a batch that was stored as one.
pub trait Unbatch {
    /// Type of a part.
    type Part: Send + 'static;

    /// Returns all parts, in order.
    ///
    /// # Errors
    /// There are no parts.
    fn parts(self) -> anyhow::Result<Vec<Self::Part>>;
}

/// Splits along the first dimension.
impl Unbatch for Tensor {
    type Part = Tensor;

    fn parts(self) -> anyhow::Result<Vec<Tensor>> {
        anyhow::ensure!(self.dim() > 0, "a tensor without dimensions has no parts");
        Ok(self.f_unbind(0)?)
    }
}

impl<T: Send + 'static> Unbatch for Vec<T> {
    type Part = T;

    fn parts(self) -> anyhow::Result<Self> {
        Ok(self)
    }
}

impl<A: Unbatch, B: Unbatch> Unbatch for (A, B) {
    type Part = (A::Part, B::Part);

    fn parts(self) -> anyhow::Result<Vec<Self::Part>> {
        let (left, right) = (self.0.parts()?, self.1.parts()?);
        let counts = (left.len(), right.len());
        anyhow::ensure!(
            counts.0 == counts.1,
            "the pair has {} parts on the left and {} on the right",
            counts.0,
            counts.1
        );
        Ok(left.into_iter().zip(right).collect())
    }
}

impl<S: Source> Dataset<S> {
    /// Replaces each item with the items that `function` makes of it: none, one or several.
    ///
    /// Their number is determined first: all items of the first epoch are made once, on all cores, and
    /// 8 bytes per item stay in memory. To make one part, all parts of its item are made; consecutive
    /// parts share them, so `shuffle` before. An item that cannot be made counts as one part, for the
    /// loader to report or to skip.
    ///
    /// ```
    /// use gpipe::data::{Dataset, Made};
    ///
    /// let words = ["a b", "", "c d e"];
    /// let lines = Dataset::new(Made::new(3, move |n| Ok(words[n])));
    /// let words = lines.flat_map(|line| Ok(line.split_whitespace().collect()))?;
    /// let batch = words.batch_with(10, Ok).load()?.next().expect("five words")?;
    /// assert_eq!(batch.concat(), "abcde");
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// `function` fails or panics (the error names the item), or the source has no end.
    pub fn flat_map<T, F>(self, function: F) -> Result<Dataset<FlatMap<S, F>>, DataError>
    where
        T: Send + 'static,
        F: Fn(S::Item) -> anyhow::Result<Vec<T>> + Send + Sync + 'static,
    {
        let source = self.source;
        let counts = walk(&source, "a flat_map", |item| {
            item.map_or(Ok(1), |item| Ok(function(item)?.len()))
        })?;
        let mut firsts = Vec::with_capacity(counts.len() + 1);
        firsts.push(0_usize);
        let mut sum = 0;
        for count in counts {
            sum = crc32c::crc32c_append(sum, &(count as u64).to_le_bytes());
            firsts.push(firsts[firsts.len() - 1].saturating_add(count));
        }
        Ok(Dataset::new(FlatMap {
            source,
            function,
            firsts,
            sum,
        }))
    }

    /// Splits items that are batches: tensors along their first dimension, vectors of numbers, and
    /// pairs of these. Like [`Dataset::flat_map`].
    ///
    /// # Errors
    /// An item has no parts, or different numbers on both sides, or the source has no end.
    pub fn unbatch(
        self,
    ) -> Result<Dataset<impl Source<Item = <S::Item as Unbatch>::Part>>, DataError>
    where
        S::Item: Unbatch,
    {
        self.flat_map(S::Item::parts)
    }
}

impl<S: Source, F> FlatMap<S, F> {
    /// Returns the item of a part, and the part's index in it.
    fn find(&self, index: usize) -> (usize, usize) {
        let item = self.firsts.partition_point(|first| *first <= index) - 1;
        (item, index - self.firsts[item])
    }

    /// Returns all parts of an item.
    fn parts<T>(&self, epoch: u64, item: usize) -> Result<Vec<Option<T>>, DataError>
    where
        F: Fn(S::Item) -> anyhow::Result<Vec<T>>,
    {
        let made = self.source.get(epoch, item)?;
        let wanted = self.firsts[item + 1] - self.firsts[item];
        let parts = (self.function)(made).and_then(|parts| {
            anyhow::ensure!(
                parts.len() == wanted,
                "{} items came of it, but {wanted} when they were counted: they have to be as many \
                 in every epoch",
                parts.len()
            );
            Ok(parts.into_iter().map(Some).collect())
        });
        parts.map_err(|source| DataError::Item {
            place: self.source.place(epoch, item),
            source,
        })
    }
}

impl<S, F, T> Source for FlatMap<S, F>
where
    S: Source,
    T: Send + 'static,
    F: Fn(S::Item) -> anyhow::Result<Vec<T>> + Send + Sync + 'static,
{
    type Item = T;

    fn len(&self) -> usize {
        self.firsts[self.firsts.len() - 1]
    }

    fn get(&self, epoch: u64, index: usize) -> Result<T, DataError> {
        let mut made = None;
        let _ = self.batch(epoch, &[index], &mut |item| {
            made = Some(item);
            ControlFlow::Break(())
        });
        made.unwrap_or_else(|| {
            Err(DataError::Bad {
                place: self.place(epoch, index),
                what: "nothing came of it".to_owned(),
            })
        })
    }

    fn batch(&self, epoch: u64, indices: &[usize], each: Each<'_, T>) -> ControlFlow<()> {
        let mut open: Option<(usize, Vec<Option<T>>)> = None;
        for &index in indices {
            let (item, part) = self.find(index);
            let mut kept = open.take_if(|(own, _)| *own == item);
            let mut own = kept.as_mut().and_then(|(_, parts)| parts[part].take());
            if own.is_none() {
                match self.parts(epoch, item) {
                    Ok(mut parts) => {
                        own = parts[part].take();
                        kept = Some((item, parts));
                    }
                    Err(error) => {
                        each(Err(error))?;
                        continue;
                    }
                }
            }
            open = kept;
            match own {
                Some(own) => each(Ok(own))?,
                // Parts that were just made are complete.
                None => return ControlFlow::Break(()),
            }
        }
        ControlFlow::Continue(())
    }

    fn place(&self, epoch: u64, index: usize) -> Place {
        self.source.place(epoch, self.find(index).0)
    }

    fn identity(&self) -> String {
        format!(
            "{}, each of them several, {} together with checksum {:08x}",
            self.source.identity(),
            self.len(),
            self.sum
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Made;

    fn counted(counts: Vec<usize>) -> Dataset<impl Source<Item = (usize, usize)>> {
        let items = Dataset::new(Made::new(counts.len(), Ok));
        let flat =
            items.flat_map(move |item| Ok((0..counts[item]).map(|own| (item, own)).collect()));
        flat.unwrap()
    }

    proptest! {
        #[test]
        fn parts_are_those_of_iterators(
            counts in prop::collection::vec(0_usize..5, 0..300),
            picks in prop::collection::vec(0.0..1.0_f64, 0..20),
        ) {
            let chain = counted(counts.clone());
            let wanted: Vec<_> = (counts.iter().enumerate())
                .flat_map(|(item, count)| (0..*count).map(move |own| (item, own)))
                .collect();
            prop_assert_eq!(chain.len(), wanted.len());
            let picks = picks.iter().map(|pick| (pick * wanted.len() as f64) as usize);
            let picks = picks.filter(|pick| *pick < wanted.len());
            // In order, then at random, some twice.
            let indices: Vec<usize> = (0..wanted.len()).chain(picks).collect();
            let mut seen = Vec::new();
            let _ = chain.batch(0, &indices, &mut |item| {
                seen.push(item.unwrap());
                ControlFlow::Continue(())
            });
            let wanted: Vec<_> = indices.iter().map(|index| wanted[*index]).collect();
            prop_assert_eq!(seen, wanted);
        }
    }

    #[test]
    fn what_cannot_be_counted_is_refused_with_its_place() {
        let chain = || Dataset::new(Made::new(600, Ok));
        let error = chain().filter(|n| {
            anyhow::ensure!(*n != 517, "odd");
            Ok(true)
        });
        assert_eq!(error.unwrap_err().to_string(), "item 517: odd");
        let error = chain().flat_map(|n| {
            assert!(n != 300, "never");
            Ok(vec![n])
        });
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("item 300: panicked: never"), "{error}");
        let endless = Dataset::new(Made::new(usize::MAX, Ok)).filter(|_| Ok(true));
        let error = endless.unwrap_err();
        assert!(
            error.is_wrong_use() && error.to_string().contains("no end"),
            "{error}"
        );
    }

    #[test]
    fn bad_items_stay_for_the_loader() {
        let chain = || {
            Dataset::new(Made::new(10, |n| {
                anyhow::ensure!(n != 3, "bad");
                assert!(n != 5, "worse");
                Ok(n)
            }))
        };
        let even = chain().filter(|n| Ok(n % 2 == 0)).unwrap();
        assert_eq!(even.len(), 7);
        let items = (0..3).map(|place| even.get(0, place).ok());
        assert_eq!(items.collect::<Vec<_>>(), [Some(0), Some(2), None]);
        let twice = chain().flat_map(|n| Ok(vec![n, n])).unwrap();
        assert_eq!(twice.len(), 18);
        assert_eq!(twice.get(0, 6).unwrap_err().to_string(), "item 3: bad");
    }

    #[test]
    fn parts_that_are_others_in_another_epoch_are_an_error() {
        let chain = Dataset::new(Made::new(4, Ok))
            .map_random(1, |_, random| Ok(random.below(1000) as usize));
        let chain = chain.flat_map(|count| Ok(vec![count; count])).unwrap();
        let error = chain.get(1, 0).unwrap_err().to_string();
        assert!(error.contains("as many in every epoch"), "{error}");
    }

    #[test]
    fn batches_are_taken_apart() {
        let pairs = Made::new(3, |n| {
            let x = Tensor::from_slice(&[n as i64, n as i64 + 10]);
            Ok((x, vec![n; 2]))
        });
        let chain = Dataset::new(pairs).unbatch().unwrap();
        assert_eq!(chain.len(), 6);
        let (x, n) = chain.get(0, 5).unwrap();
        assert_eq!((i64::try_from(x).unwrap(), n), (12, 2));
        let uneven = Dataset::new(Made::new(1, |_| Ok((vec![1], vec![1, 2])))).unbatch();
        let error = uneven
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            error.contains("1 parts on the left and 2 on the right"),
            "{error}"
        );
    }
}
