//! Files of tokens.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Data, Tokens};
use crate::data::DataError;
use crate::data::disk_file::DiskFile;
use crate::files;

/// Writes tokens into a row, and gives the largest: one pass without checks of bounds, of which
/// the compiler does several tokens at a time.
pub(super) fn put(tokens: impl Iterator<Item = u32>, row: &mut [i64]) -> u32 {
    let places = row.iter_mut().zip(tokens);
    places.fold(0, |largest, (place, token)| {
        *place = i64::from(token);
        largest.max(token)
    })
}

/// How a token is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Width {
    #[serde(alias = "uint16")]
    U16,
    #[serde(alias = "uint32")]
    U32,
}

impl Width {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }

    /// Shows the tokens that bytes are.
    pub(super) fn tokens(self, bytes: &[u8], visit: impl FnMut(u32)) {
        match self {
            Self::U16 => {
                let tokens = bytes.as_chunks().0.iter();
                tokens
                    .map(|two| u16::from_le_bytes(*two).into())
                    .for_each(visit);
            }
            Self::U32 => {
                let tokens = bytes.as_chunks().0.iter();
                tokens.map(|four| u32::from_le_bytes(*four)).for_each(visit);
            }
        }
    }

    /// Writes the tokens that bytes are into a row, and gives the largest.
    pub(super) fn put(self, bytes: &[u8], row: &mut [i64]) -> u32 {
        match self {
            Self::U16 => {
                let tokens = bytes.as_chunks().0.iter();
                put(tokens.map(|two| u16::from_le_bytes(*two).into()), row)
            }
            Self::U32 => {
                let tokens = bytes.as_chunks().0.iter();
                put(tokens.map(|four| u32::from_le_bytes(*four)), row)
            }
        }
    }

    /// What the name of a file tells.
    fn of_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let ends = |end: &str| name.ends_with(&format!(".{end}.bin"));
        if ends("u16") {
            Some(Self::U16)
        } else if ends("u32") {
            Some(Self::U32)
        } else {
            None
        }
    }
}

/// What the file beside it tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Beside {
    dtype: Width,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vocabulary: Option<usize>,
    /// How many there are, so that a file that was cut off is known as such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<usize>,
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".json");
    name.into()
}

pub(super) fn open(path: &Path) -> Result<Tokens, DataError> {
    let told = described(path)?;
    let width = told.dtype;
    let file = DiskFile::open(path)?;
    let bytes = width.bytes() as u64;
    let rest = file.len() % bytes;
    if rest > 0 {
        let what = format!(
            "the file ends with {rest} of a token's {bytes} bytes: was it copied whole, and are its tokens u{}?",
            8 * bytes
        );
        return Err(DataError::bad(path, file.len() - rest, what));
    }
    let there = file.len() / bytes;
    if let Some(tokens) = told.tokens.filter(|tokens| *tokens as u64 != there) {
        let what = format!(
            "the file has {there} tokens, but {} says {tokens}: was it copied whole?",
            beside(path).display()
        );
        return Err(DataError::bad(path, file.len(), what));
    }
    let mut tokens = Tokens::of(Data::File { file, width }, 0);
    tokens.vocabulary = match told.vocabulary {
        Some(vocabulary) => vocabulary,
        None => vocabulary(&tokens)?,
    };
    Ok(tokens)
}

/// The number after the largest token.
fn vocabulary(tokens: &Tokens) -> Result<usize, DataError> {
    let mut vocabulary = 0;
    tokens.visit(0..tokens.len(), |token| {
        vocabulary = vocabulary.max(token as usize + 1);
    })?;
    Ok(vocabulary)
}

fn described(path: &Path) -> Result<Beside, DataError> {
    let beside = beside(path);
    let text = match files::read(&beside) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A missing file is not one whose tokens nothing tells about.
            fs::metadata(path).map_err(|source| DataError::read(path, source))?;
            return Ok(Beside {
                dtype: Width::of_name(path).ok_or_else(|| untold(path, &beside))?,
                vocabulary: None,
                tokens: None,
            });
        }
        Err(error) => return Err(DataError::read(&beside, error)),
    };
    serde_json::from_slice(&text).map_err(|error| {
        let what =
            format!("{error}; {{\"dtype\": \"u16\", \"vocabulary\": 50257}} is how it should look");
        DataError::bad(&beside, 0, what)
    })
}

fn untold(path: &Path, beside: &Path) -> DataError {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    DataError::Settings(format!(
        "nothing tells how wide the tokens of {} are: call it {stem}.u16.bin or {stem}.u32.bin, or write {{\"dtype\": \"u16\"}} to {}",
        path.display(),
        beside.display()
    ))
}

/// All tokens are of the vocabulary.
pub(super) fn check(tokens: &[u32], vocabulary: usize) -> Result<(), DataError> {
    let outside = |&token: &u32| token as usize >= vocabulary;
    let Some(place) = tokens.iter().position(outside) else {
        return Ok(());
    };
    Err(DataError::Settings(format!(
        "token {} at {place} is not of the vocabulary, which has {vocabulary}",
        tokens[place]
    )))
}

pub(super) fn write(path: &Path, tokens: &[u32], vocabulary: usize) -> Result<(), DataError> {
    check(tokens, vocabulary)?;
    let dtype = if vocabulary <= 1 << 16 {
        Width::U16
    } else {
        Width::U32
    };
    let told = Beside {
        dtype,
        vocabulary: Some(vocabulary),
        tokens: Some(tokens.len()),
    };
    let told = serde_json::to_string(&told).unwrap_or_default() + "\n";
    let name = beside(path);
    fs::write(&name, told).map_err(|source| DataError::write(&name, source))?;
    let write = || -> io::Result<()> {
        let mut file = io::BufWriter::new(fs::File::create(path)?);
        for token in tokens {
            file.write_all(&token.to_le_bytes()[..dtype.bytes()])?;
        }
        file.flush()
    };
    write().map_err(|source| DataError::write(path, source))
}
