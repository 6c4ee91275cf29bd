//! Packs documents into windows of equal length, for language models.

use std::ops::ControlFlow;

use super::walk::walk;
use super::window::Packed;
use crate::{DataError, Dataset, Place, Source};

/// Where windows end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Packing {
    /// When they are full: a document may continue in the next window.
    Cut,
    /// Before a document that does not fit: documents stay whole, except those longer than a window,
    /// and the rest of the window is padding.
    Whole,
}

/// Windows of documents: [`Dataset::pack`].
#[derive(Debug, Clone)]
pub struct Windowed<S> {
    source: S,
    seq: usize,
    /// Offset of each document in the concatenation of all, and the total length.
    firsts: Vec<usize>,
    /// Offset of each window in it, unless these are multiples of `seq`.
    windows: Option<Vec<usize>>,
    sum: u32,
}

impl<S: Source<Item = Vec<i64>>> Dataset<S> {
    /// Packs documents, in order, into windows of `seq` tokens, so that batches have little padding.
    /// Each window tells which tokens may attend to which, and which count for the loss.
    ///
    /// The lengths of all documents are determined first, on all cores; 8 bytes per document stay in
    /// memory. Documents can be shuffled before, in one order for all epochs, and windows after.
    ///
    /// ```
    /// use gpipe::data::{Dataset, Made, Packing};
    ///
    /// let documents = [vec![1, 2, 3], vec![4, 5], vec![6, 7, 8]];
    /// let documents = Dataset::new(Made::new(3, move |n| Ok(documents[n].clone())));
    /// let windows = documents.pack(6, Packing::Whole)?;
    /// let batch = windows.batch(2).load()?.next().expect("two windows")?;
    /// let rows = |tensor| Vec::<i64>::try_from(gpipe::tch::Tensor::reshape(tensor, [-1]));
    /// assert_eq!(rows(&batch.tokens)?, [1, 2, 3, 4, 5, 0, 6, 7, 8, 0, 0, 0]);
    /// assert_eq!(rows(&batch.documents)?, [0, 0, 0, 1, 1, -1, 0, 0, 0, -1, -1, -1]);
    /// assert_eq!(rows(&batch.positions)?, [0, 1, 2, 0, 1, 0, 0, 1, 2, 0, 0, 0]);
    /// assert_eq!(rows(&batch.targets)?[..6], [2, 3, -100, 5, -100, -100]);
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// `seq` is 0, a document cannot be made, or the source has no end.
    pub fn pack(self, seq: usize, packing: Packing) -> Result<Dataset<Windowed<S>>, DataError> {
        if seq == 0 {
            let what = "windows of 0 tokens: they have at least 1";
            return Err(DataError::Settings(what.to_owned()));
        }
        let source = self.source;
        let lengths = walk(&source, "packing", |document| {
            Ok(document.map(|own| own.len()))
        })?;
        let (mut firsts, mut sum) = (vec![0_usize], 0);
        for (number, length) in lengths.iter().enumerate() {
            let Some(length) = *length else {
                // Making it again gives the error.
                source.get(0, number)?;
                return Err(DataError::Bad {
                    place: source.place(0, number),
                    what: "this document could not be made, and now it can".to_owned(),
                });
            };
            sum = crc32c::crc32c_append(sum, &(length as u64).to_le_bytes());
            firsts.push(firsts[number].saturating_add(length));
        }
        let windows = match packing {
            Packing::Cut => None,
            Packing::Whole => Some(whole(&firsts, seq)),
        };
        Ok(Dataset::new(Windowed {
            source,
            seq,
            firsts,
            windows,
            sum,
        }))
    }
}

/// Returns the offsets of windows for documents at these offsets: each document goes into the open
/// window if it fits there as a whole.
fn whole(firsts: &[usize], seq: usize) -> Vec<usize> {
    let mut windows = Vec::new();
    let mut open = 0;
    for (start, end) in firsts.iter().zip(&firsts[1..]) {
        if start == end {
            continue;
        }
        if windows.is_empty() || end - open > seq {
            // A document longer than a window fills all its windows except the last.
            windows.extend((*start..*end).step_by(seq));
            open = *start + (end - start - 1) / seq * seq;
        }
    }
    windows
}

impl<S: Source<Item = Vec<i64>>> Windowed<S> {
    fn total(&self) -> usize {
        self.firsts[self.firsts.len() - 1]
    }

    /// Returns a window's range of the concatenated documents.
    fn range(&self, index: usize) -> std::ops::Range<usize> {
        let total = self.total();
        match &self.windows {
            Some(windows) => windows[index]..windows.get(index + 1).copied().unwrap_or(total),
            None => index * self.seq..total.min((index + 1).saturating_mul(self.seq)),
        }
    }

    /// Returns the documents that a range overlaps.
    fn documents(&self, range: &std::ops::Range<usize>) -> std::ops::Range<usize> {
        let first = self.firsts.partition_point(|first| *first <= range.start) - 1;
        first..self.firsts.partition_point(|first| *first < range.end)
    }
}

impl<S: Source<Item = Vec<i64>>> Source for Windowed<S> {
    type Item = Packed;

    fn len(&self) -> usize {
        match &self.windows {
            Some(windows) => windows.len(),
            None => self.total().div_ceil(self.seq),
        }
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Packed, DataError> {
        let range = self.range(index);
        let numbers: Vec<usize> = self.documents(&range).collect();
        let mut packed = Packed::empty(self.seq);
        let (mut next, mut own, mut wrong) = (numbers.iter(), 0, None);
        let _ = self.source.batch(epoch, &numbers, &mut |document| {
            let Some(&number) = next.next() else {
                return ControlFlow::Break(());
            };
            let (start, end) = (self.firsts[number], self.firsts[number + 1]);
            match document {
                Ok(document) if document.len() == end - start => {
                    let (from, to) = (range.start.max(start), range.end.min(end));
                    if from < to {
                        packed.put(from - range.start, &document, from - start..to - start, own);
                        own += 1;
                    }
                }
                Ok(document) => {
                    let what = format!(
                        "this document has {} tokens, and had {} when it was packed: it has to be \
                         the same in every epoch, so shuffle windows, not documents",
                        document.len(),
                        end - start
                    );
                    let place = self.source.place(epoch, number);
                    wrong = Some(DataError::Bad { place, what });
                }
                Err(error) => wrong = Some(error),
            }
            match wrong {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        match wrong {
            Some(error) => Err(error),
            None => Ok(packed),
        }
    }

    /// Returns the place of the first document.
    fn place(&self, epoch: u64, index: usize) -> Place {
        let first = self.documents(&self.range(index)).start;
        self.source.place(epoch, first)
    }

    fn identity(&self) -> String {
        let kind = if self.windows.is_some() {
            "whole"
        } else {
            "cut"
        };
        format!(
            "{}, packed {kind} into windows of {} with checksum {:08x}",
            self.source.identity(),
            self.seq,
            self.sum
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stages::window::{IGNORED, NONE};
    use crate::{Made, Stack};

    fn documents(lengths: Vec<usize>) -> Dataset<impl Source<Item = Vec<i64>>> {
        Dataset::new(Made::new(lengths.len(), move |n| {
            Ok((0..lengths[n])
                .map(|place| (1000 * (n + 1) + place) as i64)
                .collect())
        }))
    }

    proptest! {
        #[test]
        fn every_token_comes_once_with_what_follows_it_in_its_document(
            lengths in prop::collection::vec(0_usize..20, 1..30), seq in 1_usize..12,
            whole: bool,
        ) {
            let packing = if whole { Packing::Whole } else { Packing::Cut };
            let chain = documents(lengths.clone()).pack(seq, packing).unwrap();
            let windows: Vec<Packed> = (0..chain.len()).map(|n| chain.get(0, n).unwrap()).collect();
            let mut seen = Vec::new();
            for window in &windows {
                for place in 0..seq {
                    let token = window.tokens[place];
                    if window.documents[place] == NONE {
                        prop_assert_eq!((token, window.targets[place]), (0, IGNORED));
                        continue;
                    }
                    let (document, at) = (token as usize / 1000 - 1, token as usize % 1000);
                    let last = at + 1 == lengths[document];
                    prop_assert_eq!(window.targets[place], if last { IGNORED } else { token + 1 });
                    let begins = place == 0
                        || window.documents[place - 1] != window.documents[place];
                    let position = if begins { 0 } else { window.positions[place - 1] + 1 };
                    prop_assert_eq!(window.positions[place], position);
                    // With whole packing, a document that fits is not split.
                    prop_assert!(!(whole && begins) || at % seq == 0);
                    seen.push(token);
                }
            }
            let wanted: Vec<i64> = (lengths.iter().enumerate())
                .flat_map(|(n, length)| (0..*length).map(move |at| (1000 * (n + 1) + at) as i64))
                .collect();
            prop_assert_eq!(seen, wanted);
            if whole {
                // No document would have fit into the preceding window.
                for pair in windows.windows(2) {
                    let used = pair[0].documents.iter().filter(|own| **own != NONE).count();
                    let first = pair[1].documents.iter().filter(|own| **own == 0).count();
                    prop_assert!(used + first > seq);
                }
            }
        }
    }

    #[test]
    fn masks_keep_documents_apart() {
        let chain = documents(vec![2, 1]).pack(4, Packing::Cut).unwrap();
        let batch = Stack::stack(vec![chain.get(0, 0).unwrap()]).unwrap();
        let mask = batch.attention_mask().unwrap();
        assert_eq!(mask.size(), [1, 1, 4, 4]);
        let mask: Vec<bool> = mask.reshape([-1]).try_into().unwrap();
        let rows: Vec<String> = (mask.chunks(4))
            .map(|row| row.iter().map(|own| if *own { 'x' } else { '.' }).collect())
            .collect();
        assert_eq!(rows, ["x...", "xx..", "..x.", "...x"]);
        let counts: Vec<bool> = batch.loss_mask().unwrap().reshape([-1]).try_into().unwrap();
        assert_eq!(counts, [true, false, false, false]);
    }

    #[test]
    fn documents_that_change_or_cannot_be_made_are_named() {
        let chain = documents(vec![3, 5, 7, 9]).shuffle(usize::MAX, 1);
        let chain = chain.pack(8, Packing::Cut).unwrap();
        let windows = (1..9).flat_map(|epoch| (0..chain.len()).map(move |n| (epoch, n)));
        let wrong = windows
            .into_iter()
            .find_map(|(epoch, n)| chain.get(epoch, n).err());
        assert!(
            wrong
                .unwrap()
                .to_string()
                .contains("shuffle windows, not documents")
        );
        let bad = Dataset::new(Made::new(3, |n| {
            anyhow::ensure!(n != 1, "gone");
            Ok(vec![1_i64])
        }));
        let error = bad.pack(2, Packing::Cut).unwrap_err();
        assert_eq!(error.to_string(), "item 1: gone");
    }
}
