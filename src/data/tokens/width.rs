//! How the tokens of a file are written: as numbers of two or of four bytes.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// Writes tokens to a row and returns the largest: one pass without bounds checks, which the compiler
/// vectorizes.
pub(super) fn put(tokens: impl Iterator<Item = u32>, row: &mut [i64]) -> u32 {
    let places = row.iter_mut().zip(tokens);
    places.fold(0, |largest, (place, token)| {
        *place = i64::from(token);
        largest.max(token)
    })
}

/// Encoding of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Width {
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

    /// Passes the tokens of bytes to `visit`.
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

    /// Writes the tokens of bytes to a row, and returns the largest.
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

    /// Returns the encoding that the file's name tells.
    pub(super) fn of_name(path: &Path) -> Option<Self> {
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

/// Header size of llm.c's files: 4-byte integers, of which the first identifies the file type, the
/// second the version, and the third is the number of tokens.
pub(super) const HEADER: u64 = 1024;

/// Returns the encoding and the number of tokens of a file that begins like llm.c's.
pub(crate) fn llm_c(start: &[u8]) -> Option<(Width, usize)> {
    let (numbers, _) = start.as_chunks::<4>();
    let [what, version, tokens, ..] = numbers else {
        return None;
    };
    let width = match [what, version].map(|own| u32::from_le_bytes(*own)) {
        [20_240_520, 1] => Width::U16,
        [20_240_801, 7] => Width::U32,
        _ => return None,
    };
    Some((width, u32::from_le_bytes(*tokens) as usize))
}
