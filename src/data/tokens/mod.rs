//! Token sequences, and windows of them.

mod documents;
mod file;
pub(super) mod width;
mod windows;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tch::Kind;

use super::disk_file::DiskFile;
use super::{DataError, Dataset, Gathered, Place, Split, TextSet, room};
use gpipe_torch::with_numbers;

pub use documents::Documents;
pub use windows::{RandomWindows, RowOfWindows};

use width::Width;

/// Tokens at each end that the checksum covers.
const ENDS: usize = 1 << 20;
/// Upper bound of tokens read from a file at a time.
const BLOCK: usize = 1 << 16;

/// A sequence of tokens: of a text in memory, or of a file of any size, read on demand.
///
/// ```
/// use gpipe::data::Tokens;
///
/// let tokens = Tokens::of_bytes(b"the whale, the whale!");
/// let windows = tokens.windows(4)?.shuffle(usize::MAX, 7).batch(2);
/// for batch in windows.load()? {
///     let (tokens, next) = batch?;
///     assert_eq!(tokens.size(), next.size());
/// }
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Clone)]
pub struct Tokens {
    data: Arc<Data>,
    /// The range in use.
    part: Range<usize>,
    vocabulary: usize,
}

enum Data {
    Memory(Vec<u32>),
    File {
        file: DiskFile,
        width: Width,
        /// Offset of the first token.
        start: u64,
    },
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("len", &self.len())
            .field("vocabulary", &self.vocabulary)
            .finish_non_exhaustive()
    }
}

impl Tokens {
    /// Makes a sequence in memory; the vocabulary ends with the largest token.
    pub fn new(tokens: Vec<u32>) -> Self {
        let largest = tokens.iter().max();
        let vocabulary = largest.map_or(0, |&largest| largest as usize + 1);
        Self::of(Data::Memory(tokens), vocabulary)
    }

    /// Makes a sequence in memory with a given vocabulary size.
    ///
    /// # Errors
    /// A token is not in the vocabulary.
    pub fn with_vocabulary(tokens: Vec<u32>, vocabulary: usize) -> Result<Self, DataError> {
        file::check(&tokens, vocabulary)?;
        Ok(Self::of(Data::Memory(tokens), vocabulary))
    }

    /// Makes one token per byte, with a vocabulary of 256.
    pub fn of_bytes(text: &[u8]) -> Self {
        let tokens = text.iter().copied().map(u32::from).collect();
        Self::of(Data::Memory(tokens), 256)
    }

    /// Returns the tokens of a text, one per character.
    pub fn of_text(set: &TextSet) -> Self {
        let tokens = [Split::Train, Split::HeldOut].map(|split| set.part(split));
        Self::of(Data::Memory(tokens.concat()), set.vocabulary().len())
    }

    fn of(data: Data, vocabulary: usize) -> Self {
        let mut tokens = Self {
            data: Arc::new(data),
            part: 0..0,
            vocabulary,
        };
        tokens.part = 0..tokens.all();
        tokens
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.part.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// Returns the vocabulary size: all tokens are below it.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Returns a subsequence; a range that is too long is clipped.
    #[must_use]
    pub fn range(&self, range: Range<usize>) -> Self {
        let end = self.part.start.saturating_add(range.end).min(self.part.end);
        let start = self.part.start.saturating_add(range.start).min(end);
        Self {
            part: start..end,
            ..self.clone()
        }
    }

    /// Returns the first nine tenths, or the last tenth.
    #[must_use]
    pub fn split(&self, split: Split) -> Self {
        let train = self.len() - self.len() / 10;
        match split {
            Split::Train => self.range(0..train),
            Split::HeldOut => self.range(train..self.len()),
        }
    }

    /// Returns consecutive windows of `seq` tokens, each with the next token of each; an incomplete
    /// window at the end is dropped.
    ///
    /// # Errors
    /// There is no complete window.
    pub fn windows(&self, seq: usize) -> Result<Dataset<RowOfWindows>, DataError> {
        Ok(Dataset::new(RowOfWindows::new(self.clone(), seq)?))
    }

    /// Returns windows of `seq` tokens at random positions, without end.
    ///
    /// # Errors
    /// There is no complete window.
    pub fn random_windows(
        &self,
        seq: usize,
        seed: u64,
    ) -> Result<Dataset<RandomWindows>, DataError> {
        Ok(Dataset::new(RandomWindows::new(self.clone(), seq, seed)?))
    }

    /// Reads the tokens of a range.
    ///
    /// # Errors
    /// They cannot be read, or a token is not in the vocabulary; the error gives its place.
    ///
    /// # Panics
    /// The range is out of bounds.
    pub fn get(&self, range: Range<usize>) -> Result<Vec<i64>, DataError> {
        assert!(range.end <= self.len(), "{range:?} of {}", self.len());
        let mut tokens = Vec::with_capacity(range.len());
        self.valid(range, |token| tokens.push(i64::from(token)))?;
        Ok(tokens)
    }

    /// Passes the tokens of a range to `show`, in order.
    ///
    /// # Errors
    /// They cannot be read, or a token is not in the vocabulary.
    fn valid(&self, range: Range<usize>, mut show: impl FnMut(u32)) -> Result<(), DataError> {
        let start = self.part.start + range.start;
        let (mut place, mut bad) = (start, None);
        self.visit(start..start + range.len(), |token| {
            if bad.is_none() && token as usize >= self.vocabulary {
                bad = Some((place, token));
            }
            place += 1;
            show(token);
        })?;
        let Some((place, token)) = bad else {
            return Ok(());
        };
        Err(DataError::Bad {
            place: self.place_in_all(place),
            what: format!(
                "token {token} is not of the vocabulary, which has {}",
                self.vocabulary
            ),
        })
    }

    /// Writes the tokens from a position to one row, and the next token of each to another; returns
    /// false if they cannot be read or one is not in the vocabulary: [`Tokens::get`] gives the error.
    fn window(&self, start: usize, bytes: &mut Vec<u8>, [x, y]: [&mut [i64]; 2]) -> bool {
        let Some((first, rest)) = x.split_first_mut() else {
            return false;
        };
        let (all, count) = (self.part.start + start, y.len() + 1);
        let one = std::slice::from_mut(first);
        let largest = match &*self.data {
            Data::Memory(tokens) => {
                let (head, tail) = tokens[all..all + count].split_at(1);
                let [head, tail] = [head, tail].map(|own| own.iter().copied());
                width::put(head, one).max(width::put(tail, y))
            }
            Data::File { file, width, start } => {
                bytes.resize(count * width.bytes(), 0);
                let offset = start + (all * width.bytes()) as u64;
                if file.read(bytes, offset).is_err() {
                    return false;
                }
                let (head, tail) = bytes.split_at(width.bytes());
                width.put(head, one).max(width.put(tail, y))
            }
        };
        rest.copy_from_slice(&y[..y.len() - 1]);
        (largest as usize) < self.vocabulary
    }

    /// Returns windows at these positions as two batches.
    fn gathered(
        &self,
        seq: usize,
        starts: impl ExactSizeIterator<Item = usize>,
    ) -> Option<Gathered> {
        let shape = [starts.len() as i64, seq as i64];
        let mut both = [
            room::empty(&shape, Kind::Int64).ok()?,
            room::empty(&shape, Kind::Int64).ok()?,
        ];
        let [x, y] = &mut both;
        let mut bytes = Vec::new();
        let done = with_numbers(x, |x: &mut [i64]| {
            with_numbers(y, |y: &mut [i64]| {
                let rows = x.chunks_exact_mut(seq).zip(y.chunks_exact_mut(seq));
                rows.zip(starts)
                    .all(|((x, y), start)| self.window(start, &mut bytes, [x, y]))
            })
        });
        let [x, y] = both.map(Gathered::Tensor);
        done.ok()?.ok()?.then(|| Gathered::pair(x, y))
    }

    /// Checks that the tokens that `Tokens::identity` depends on are in the vocabulary. If one were
    /// found only when it is read, fixing it would invalidate all saved positions in the file.
    ///
    /// # Errors
    /// A token is not; the error gives the place of the first.
    pub fn check_ends(&self) -> Result<(), DataError> {
        let ends = ENDS.min(self.len());
        self.valid(0..ends, |_| ())?;
        self.valid(self.len() - ends..self.len(), |_| ())
    }

    /// Returns the place of a token.
    pub(super) fn place(&self, token: usize) -> Place {
        self.place_in_all(self.part.start + token)
    }

    fn place_in_all(&self, token: usize) -> Place {
        match &*self.data {
            Data::Memory(_) => Place::Item(token),
            Data::File { file, width, start } => {
                Place::file(file.path(), start + (token * width.bytes()) as u64)
            }
        }
    }

    fn all(&self) -> usize {
        match &*self.data {
            Data::Memory(tokens) => tokens.len(),
            Data::File { file, width, start } => (file.len() - start) as usize / width.bytes(),
        }
    }

    /// Passes the tokens of a range of the file to `visit`, in order.
    fn visit(&self, range: Range<usize>, mut visit: impl FnMut(u32)) -> Result<(), DataError> {
        let (file, width, before) = match &*self.data {
            Data::Memory(tokens) => {
                tokens[range].iter().copied().for_each(visit);
                return Ok(());
            }
            Data::File { file, width, start } => (file, *width, *start),
        };
        let mut bytes = vec![0; range.len().min(BLOCK) * width.bytes()];
        for start in range.clone().step_by(BLOCK) {
            let tokens = (range.end - start).min(BLOCK);
            let block = &mut bytes[..tokens * width.bytes()];
            file.read(block, before + (start * width.bytes()) as u64)?;
            width.tokens(block, &mut visit);
        }
        Ok(())
    }

    /// Returns the checksum of a range's tokens, four bytes each, continuing `sum`.
    fn sum(&self, mut sum: u32, range: Range<usize>) -> Result<u32, DataError> {
        let mut bytes = Vec::with_capacity(4 * range.len().min(BLOCK));
        for start in range.clone().step_by(BLOCK) {
            bytes.clear();
            self.visit(start..range.end.min(start + BLOCK), |token| {
                bytes.extend_from_slice(&token.to_le_bytes());
            })?;
            sum = crc32c::crc32c_append(sum, &bytes);
        }
        Ok(sum)
    }

    /// Describes everything that a position depends on. For large files, only both ends are checked.
    pub(super) fn identity(&self) -> String {
        let (Range { start, end }, ends) = (self.part.clone(), ENDS.min(self.len()));
        let first = self.sum(0, start..start + ends);
        match first.and_then(|sum| self.sum(sum, end - ends..end)) {
            Ok(sum) => format!("{} tokens with checksum {sum:08x}", self.len()),
            // Reading the tokens will report the same error.
            Err(error) => format!("{} tokens that cannot be read ({error})", self.len()),
        }
    }

    /// Opens a token file; its encoding is told by its name, by a file beside it, or by its header.
    ///
    /// Tokens are unsigned, little-endian and contiguous. Only llm.c's files have a header, which tells
    /// the number of tokens and whether they have 2 or 4 bytes. Without a header, they have 2 bytes if
    /// the name ends with `.u16.bin` and 4 if it ends with `.u32.bin`; otherwise a file `NAME.json`
    /// tells: `{"dtype": "u16", "vocabulary": 50257}`. `train.bin` and `val.bin` in one folder are
    /// nanoGPT's, with 2 bytes. Without a known vocabulary size, the file is searched for the largest
    /// token.
    ///
    /// # Errors
    /// A file cannot be read, its encoding is unknown, or its length is not a whole number of tokens.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        file::open(path)
    }

    /// Opens a folder's token files for training and for evaluation, by their names (`train.bin`,
    /// `val.bin`), with a common vocabulary; `None` if there are no two such files.
    ///
    /// # Errors
    /// As [`Tokens::open`].
    pub fn of_folder(path: &Path) -> Result<Option<[Self; 2]>, DataError> {
        let Some([train, held_out]) = file::of_folder(path) else {
            return Ok(None);
        };
        let mut both = [Self::open(&train)?, Self::open(&held_out)?];
        let vocabulary = both[0].vocabulary.max(both[1].vocabulary);
        both.iter_mut().for_each(|own| own.vocabulary = vocabulary);
        Ok(Some(both))
    }

    /// Whether a folder has two files for [`Tokens::of_folder`].
    pub fn are_in(folder: &Path) -> bool {
        file::of_folder(folder).is_some()
    }

    /// Writes tokens for [`Tokens::open`], with a description file: 2 bytes each if `vocabulary` allows
    /// it.
    ///
    /// # Errors
    /// A token is not below `vocabulary`, or the file cannot be written.
    pub fn write(path: &Path, tokens: &[u32], vocabulary: usize) -> Result<(), DataError> {
        file::write(path, tokens, vocabulary)
    }
}
