//! Text as tokens, one per character.

use std::io;
use std::path::{Path, PathBuf};

use ndarray::Array2;
use tch::Tensor;
use thiserror::Error;

use super::{DataError, Random, magic};
use gpipe_partitioner::files;
use gpipe_torch::TorchError;

/// Marker that some editors put at the beginning of UTF-8 files; it is not part of the text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// An error of a text.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        r#source: io::Error,
    },
    /// The file is not UTF-8.
    #[error("{} is not UTF-8 text: byte {offset} starts no character", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// Offset of the first invalid byte.
        offset: usize,
    },
    /// The file is of another type.
    #[error(transparent)]
    OtherFile(#[from] DataError),
    /// The text is shorter than a sample needs.
    #[error(
        "the text is too short: {characters} characters, but a sequence of {seq} needs {needed} so that a tenth can be held out"
    )]
    TooShort {
        /// Number of characters in the text.
        characters: usize,
        /// Tokens per sample.
        seq: usize,
        /// Number of characters needed.
        needed: usize,
    },
    /// The character is not in the vocabulary.
    #[error("the text that the vocabulary was made from has no {character:?}")]
    Unknown {
        /// The character.
        character: char,
    },
}

/// A text as numbers, one per distinct character; the last tenth is held out.
#[derive(Debug, Clone)]
pub struct TextSet {
    vocabulary: Vec<char>,
    tokens: Vec<u32>,
    train: usize,
}

/// Part of a [`TextSet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// The first nine tenths.
    Train,
    /// The last tenth, never trained on.
    HeldOut,
}

impl TextSet {
    /// Numbers the distinct characters of `text` in code-point order.
    pub fn new(text: &str) -> Self {
        let mut vocabulary: Vec<char> = text.chars().collect();
        vocabulary.sort_unstable();
        vocabulary.dedup();
        let number = |character| {
            // The vocabulary has every character of the text.
            let place = vocabulary.binary_search(&character).unwrap_or_default();
            u32::try_from(place).unwrap_or_default()
        };
        let tokens: Vec<u32> = text.chars().map(number).collect();
        let train = tokens.len() - tokens.len() / 10;
        Self {
            vocabulary,
            tokens,
            train,
        }
    }

    /// Reads a UTF-8 text file. A byte order mark is skipped.
    ///
    /// # Errors
    /// [`TextError::Read`] and [`TextError::NotText`], naming the file.
    pub fn read(path: &Path) -> Result<Self, TextError> {
        Ok(Self::new(&Self::read_text(path)?))
    }

    /// Reads the text of a UTF-8 file.
    ///
    /// # Errors
    /// As [`TextSet::read`].
    pub fn read_text(path: &Path) -> Result<String, TextError> {
        let bytes = files::read(path).map_err(|source| TextError::Read {
            path: path.to_owned(),
            source,
        })?;
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                magic::refuse_other(path, &[])?;
                return Err(TextError::NotText {
                    path: path.to_owned(),
                    offset: error.utf8_error().valid_up_to(),
                });
            }
        };
        Ok(match text.strip_prefix(BYTE_ORDER_MARK) {
            Some(text) => text.to_owned(),
            None => text,
        })
    }

    /// Returns the distinct characters.
    pub fn vocabulary(&self) -> &[char] {
        &self.vocabulary
    }

    /// Checks that both parts hold a sample of `seq` tokens and its target.
    ///
    /// # Errors
    /// [`TextError::TooShort`].
    pub fn require(&self, seq: usize) -> Result<(), TextError> {
        let needed = seq.saturating_add(1).saturating_mul(10);
        let characters = self.tokens.len();
        if characters < needed {
            return Err(TextError::TooShort {
                characters,
                seq,
                needed,
            });
        }
        Ok(())
    }

    /// Encodes a text as numbers.
    ///
    /// # Errors
    /// [`TextError::Unknown`] for a character outside the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>, TextError> {
        text.chars()
            .map(|character| {
                let place = self.vocabulary.binary_search(&character);
                place
                    .map(|place| place as i64)
                    .map_err(|_| TextError::Unknown { character })
            })
            .collect()
    }

    /// Returns the character of a number, or the replacement character if out of range.
    pub fn decode(&self, token: i64) -> char {
        let place = usize::try_from(token).ok();
        place
            .and_then(|place| self.vocabulary.get(place))
            .copied()
            .unwrap_or('\u{fffd}')
    }

    /// Returns the tokens of a part.
    pub fn part(&self, split: Split) -> &[u32] {
        match split {
            Split::Train => &self.tokens[..self.train],
            Split::HeldOut => &self.tokens[self.train..],
        }
    }

    /// Returns consecutive windows of the held-out part, `batch` at a time: every token once, except a
    /// rest shorter than a window.
    pub fn held_out(&self, batch: usize, seq: usize) -> impl Iterator<Item = Windows> {
        let part = self.part(Split::HeldOut);
        let starts: Vec<usize> = (0..part.len().saturating_sub(seq))
            .step_by(seq.max(1))
            .collect();
        let batches: Vec<Vec<usize>> = starts.chunks(batch.max(1)).map(<[usize]>::to_vec).collect();
        batches
            .into_iter()
            .map(move |starts| Windows::cut(part, &starts, seq))
    }
}

/// Draws random windows of the training part; the same for the same seed.
#[derive(Debug, Clone)]
pub struct Sampler {
    random: Random,
}

impl Sampler {
    /// Makes a sampler with a seed.
    pub fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        Self { random }
    }

    /// Returns the state: passed to [`Sampler::new`], it continues the sequence.
    pub fn state(&self) -> u64 {
        self.random.state()
    }

    /// Draws the next `batch` windows of `seq` tokens.
    ///
    /// # Errors
    /// [`TextError::TooShort`].
    pub fn batch(&mut self, set: &TextSet, batch: usize, seq: usize) -> Result<Windows, TextError> {
        set.require(seq)?;
        let part = set.part(Split::Train);
        let choices = (part.len() - seq) as u64;
        let starts: Vec<usize> = (0..batch)
            .map(|_| self.random.below(choices) as usize)
            .collect();
        Ok(Windows::cut(part, &starts, seq))
    }

    /// Draws a number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.random.uniform()
    }
}

/// Token sequences and their next tokens, on the host.
///
/// *Shapes*: both `[batch, seq]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// The tokens.
    pub tokens: Array2<i64>,
    /// The next token at each position.
    pub targets: Array2<i64>,
}

impl Windows {
    fn cut(text: &[u32], starts: &[usize], seq: usize) -> Self {
        let cut = |offset: usize| {
            Array2::from_shape_fn((starts.len(), seq), |(row, place)| {
                i64::from(text[starts[row] + offset + place])
            })
        };
        Self {
            tokens: cut(0),
            targets: cut(1),
        }
    }

    /// Converts both to tensors on the CPU.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn tensors(&self) -> Result<(Tensor, Tensor), TorchError> {
        Ok((
            Tensor::try_from(&self.tokens)?,
            Tensor::try_from(&self.targets)?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_next_characters() {
        let text: String = ('a'..='z').cycle().take(400).collect();
        let set = TextSet::new(&text);
        assert_eq!(set.vocabulary().len(), 26);
        let windows = Sampler::new(3).batch(&set, 5, 16).unwrap();
        assert_eq!(windows.tokens.dim(), (5, 16));
        assert_eq!(
            windows.tokens.mapv(|token| (token + 1) % 26),
            windows.targets
        );
        let (x, y) = windows.tensors().unwrap();
        assert_eq!((x.size(), y.size()), (vec![5, 16], vec![5, 16]));
        assert_eq!(x.int64_value(&[4, 15]), windows.tokens[[4, 15]]);
    }

    #[test]
    fn a_sampler_goes_on_where_another_stood() {
        let text: String = ('a'..='z').cycle().take(400).collect();
        let set = TextSet::new(&text);
        let mut one = Sampler::new(7);
        for _ in 0..4 {
            let mut saved = Sampler::new(one.state());
            let next = one.batch(&set, 3, 8).unwrap();
            assert_eq!(saved.batch(&set, 3, 8).unwrap(), next);
        }
    }

    #[test]
    fn held_out_windows_cover_the_last_tenth_once() {
        let text: String = ('a'..='z').cycle().take(1000).collect();
        let set = TextSet::new(&text);
        let windows: usize = set.held_out(4, 10).map(|w| w.tokens.nrows()).sum();
        assert_eq!(
            windows, 9,
            "the tenth window has no target for its last token"
        );
    }

    #[test]
    fn short_texts_and_strange_characters_are_refused_with_numbers() {
        let set = TextSet::new("abc");
        let error = Sampler::new(0).batch(&set, 1, 8).unwrap_err().to_string();
        assert!(
            error.contains("3 characters") && error.contains("90"),
            "{error}"
        );
        assert!(set.encode("abz").unwrap_err().to_string().contains("'z'"));
    }
}
