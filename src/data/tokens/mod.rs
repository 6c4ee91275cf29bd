//! Tokens in a row, and windows of them.

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

/// Tokens at each end that the checksum is of.
const ENDS: usize = 1 << 20;
/// Tokens of a file that are read at a time, at most.
const BLOCK: usize = 1 << 16;

/// Numbered tokens in a row: of a text in memory, or of a file of any size, which is read
/// part by part as they are asked for.
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
    /// Those of all that are meant.
    part: Range<usize>,
    vocabulary: usize,
}

enum Data {
    Memory(Vec<u32>),
    File {
        file: DiskFile,
        width: Width,
        /// The byte with which the first token begins.
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
    /// Tokens in memory; the vocabulary ends with the largest.
    pub fn new(tokens: Vec<u32>) -> Self {
        let largest = tokens.iter().max();
        let vocabulary = largest.map_or(0, |&largest| largest as usize + 1);
        Self::of(Data::Memory(tokens), vocabulary)
    }

    /// Tokens in memory, of a vocabulary that may have more.
    ///
    /// # Errors
    /// A token is not of the vocabulary.
    pub fn with_vocabulary(tokens: Vec<u32>, vocabulary: usize) -> Result<Self, DataError> {
        file::check(&tokens, vocabulary)?;
        Ok(Self::of(Data::Memory(tokens), vocabulary))
    }

    /// One token a byte, of a vocabulary of 256.
    pub fn of_bytes(text: &[u8]) -> Self {
        let tokens = text.iter().copied().map(u32::from).collect();
        Self::of(Data::Memory(tokens), 256)
    }

    /// The tokens of a text, one a character.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.part.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// All tokens are below this.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Those of a range of places; all are where that is too long.
    #[must_use]
    pub fn range(&self, range: Range<usize>) -> Self {
        let end = self.part.start.saturating_add(range.end).min(self.part.end);
        let start = self.part.start.saturating_add(range.start).min(end);
        Self {
            part: start..end,
            ..self.clone()
        }
    }

    /// The first nine tenths, or the last tenth.
    #[must_use]
    pub fn split(&self, split: Split) -> Self {
        let train = self.len() - self.len() / 10;
        match split {
            Split::Train => self.range(0..train),
            Split::HeldOut => self.range(train..self.len()),
        }
    }

    /// Windows of `seq` tokens each, one after the other, with the token that follows
    /// each; what is left at the end is too short for one.
    ///
    /// # Errors
    /// There is not one window.
    pub fn windows(&self, seq: usize) -> Result<Dataset<RowOfWindows>, DataError> {
        Ok(Dataset::new(RowOfWindows::new(self.clone(), seq)?))
    }

    /// Windows of `seq` tokens from places drawn at random, without end.
    ///
    /// # Errors
    /// There is not one window.
    pub fn random_windows(
        &self,
        seq: usize,
        seed: u64,
    ) -> Result<Dataset<RandomWindows>, DataError> {
        Ok(Dataset::new(RandomWindows::new(self.clone(), seq, seed)?))
    }

    /// The tokens of a range.
    ///
    /// # Errors
    /// One is not of the vocabulary: where it is.
    ///
    /// # Panics
    /// The range is not inside.
    pub fn get(&self, range: Range<usize>) -> Result<Vec<i64>, DataError> {
        assert!(range.end <= self.len(), "{range:?} of {}", self.len());
        let mut tokens = Vec::with_capacity(range.len());
        self.valid(range, |token| tokens.push(i64::from(token)))?;
        Ok(tokens)
    }

    /// Shows the tokens of a range, in order.
    ///
    /// # Errors
    /// They cannot be read, or one is not of the vocabulary.
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

    /// The tokens of a place into one row and those that follow each into another; false where
    /// they cannot be read, or one is not of the vocabulary: [`Tokens::get`] tells which.
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

    /// Windows from these places as two batches.
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

    /// That the tokens that [`Tokens::identity`] depends on are of the vocabulary. If one
    /// of them were found when its turn comes, it could not be put right: no position
    /// that was saved would be one in the file any more.
    ///
    /// # Errors
    /// Where the first is that is not.
    pub fn check_ends(&self) -> Result<(), DataError> {
        let ends = ENDS.min(self.len());
        self.valid(0..ends, |_| ())?;
        self.valid(self.len() - ends..self.len(), |_| ())
    }

    /// Where a token is.
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

    /// Shows the tokens of a range of all, in order.
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

    /// The checksum of the tokens of a range of all, four bytes each, behind what `sum` is of.
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

    /// What a position in them depends on. Of large files only both ends are looked at.
    pub(super) fn identity(&self) -> String {
        let (Range { start, end }, ends) = (self.part.clone(), ENDS.min(self.len()));
        let first = self.sum(0, start..start + ends);
        match first.and_then(|sum| self.sum(sum, end - ends..end)) {
            Ok(sum) => format!("{} tokens with checksum {sum:08x}", self.len()),
            // No position is one in these; reading them will tell the same.
            Err(error) => format!("{} tokens that cannot be read ({error})", self.len()),
        }
    }

    /// Opens a file of tokens; what they are is told by its name, by a file beside it, or by its header.
    ///
    /// The tokens are unsigned and little-endian, without anything between them, and nothing before them but the
    /// header of llm.c's files, which tells how many there are and that they have 2 or 4 bytes.
    /// Without a header they have 2 bytes where the name ends with `.u16.bin` and 4 where it ends with
    /// `.u32.bin`; of other names a file `NAME.json` says it: `{"dtype": "u16",
    /// "vocabulary": 50257}`. `train.bin` and `val.bin` of one folder are nanoGPT's, of 2 bytes. Where nothing
    /// tells a vocabulary, the file is searched for the largest token.
    ///
    /// # Errors
    /// A file cannot be read, nothing tells what the tokens are, or there is not a whole
    /// number of them.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        file::open(path)
    }

    /// Opens the two files of tokens of a folder, one to train on and one that is held out, as their names tell
    /// (`train.bin`, `val.bin`), with one vocabulary; none where it has no two such files.
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

    /// Writes tokens for [`Tokens::open`], with the file beside it: 2 bytes each where
    /// `vocabulary` allows it.
    ///
    /// # Errors
    /// A token is not below `vocabulary`; the file cannot be written.
    pub fn write(path: &Path, tokens: &[u32], vocabulary: usize) -> Result<(), DataError> {
        file::write(path, tokens, vocabulary)
    }
}
