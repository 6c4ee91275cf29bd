//! Detects a file's type by its first bytes, so that a reader of another type can name the right one.

use std::io::Read as _;
use std::path::Path;

use super::tokens::width::llm_c;
use super::{DataError, tf_record::frame};
use gpipe_partitioner::files;

/// Bytes needed to detect all types: the header of a tar file.
const BYTES: u64 = 512;

/// A type of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Magic {
    Npy,
    Zip,
    Safetensors,
    Idx,
    TfRecord,
    Tar,
    Columns,
    LlmC,
    Hdf5,
    Image,
    Compressed,
}

impl Magic {
    /// Detects the type of a file that begins like this, if known.
    pub(super) fn of(start: &[u8]) -> Option<Self> {
        Some(match start {
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Self::Npy,
            [b'P', b'K', 3, 4, ..] => Self::Zip,
            // The length of a header, and the header.
            [_, _, _, _, 0, 0, 0, 0, b'{', b'"' | b' ' | b'}', ..] => Self::Safetensors,
            // Text may begin with these letters, but not continue like this.
            [b'P', b'A', b'R', b'1' | b'E']
            | [b'P', b'A', b'R', b'1' | b'E', ..=0x1f | 0x80.., ..]
            | b"ARROW1"
            | [b'A', b'R', b'R', b'O', b'W', b'1', 0, ..] => Self::Columns,
            // A message of a stream: the mark, then its length, a multiple of 8.
            [0xff, 0xff, 0xff, 0xff, length, _, _, 0, ..] if length % 8 == 0 => Self::Columns,
            [0x89, b'H', b'D', b'F', b'\r', b'\n', ..] => Self::Hdf5,
            [0x89, b'P', b'N', b'G', ..] | [0xff, 0xd8, 0xff, ..] => Self::Image,
            [0x1f, 0x8b, ..]
            | [b'B', b'Z', b'h', _, b'1', b'A', b'Y', ..]
            | [0xfd, b'7', b'z', b'X', b'Z', ..]
            | [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Compressed,
            // The element types of IDX, and a number of dimensions.
            [0, 0, 8..=14, 1..=8, ..] => Self::Idx,
            start if frame::length(start).is_some() => Self::TfRecord,
            start if llm_c(start).is_some() => Self::LlmC,
            start if start.get(257..262) == Some(b"ustar") => Self::Tar,
            _ => return None,
        })
    }

    /// Detects the type of a file; `None` also if it cannot be read.
    fn of_file(path: &Path) -> Option<Self> {
        let mut start = Vec::new();
        files::open(path)
            .ok()?
            .take(BYTES)
            .read_to_end(&mut start)
            .ok()?;
        Self::of(&start)
    }

    /// Returns the type's description, its extension for the command line, and its reader in the
    /// library.
    fn told(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Npy => ("a NumPy file", ".npy", "Array::npy"),
            Self::Zip => ("a zip archive, as numpy.savez writes", ".npz", "Array::npz"),
            Self::Safetensors => ("a safetensors file", ".safetensors", "Array::open"),
            Self::Idx => ("an IDX file", ".idx", "Idx::open"),
            Self::TfRecord => ("a file of TFRecords", ".tfrecord", "TfRecords::open"),
            Self::Tar => ("a tar file", "", "Tars::open"),
            Self::Columns => (
                "a Parquet or Arrow file",
                ".parquet or .arrow",
                "Columns::open",
            ),
            Self::LlmC => ("a file of tokens of llm.c", ".bin", "Tokens::open"),
            Self::Hdf5 => (
                "an HDF5 file, which is not read: save its arrays by numpy.savez",
                "",
                "",
            ),
            Self::Image => (
                "an image: put it in a folder of its class, and name the folder with these",
                "",
                "",
            ),
            Self::Compressed => ("compressed, with gzip or the like: decompress it", "", ""),
        }
    }
}

/// Checks that a file is not of another type than its reader's, by its first bytes.
///
/// # Errors
/// The file is of another type; the error names it and its reader.
pub(super) fn refuse_other(path: &Path, own: &[Magic]) -> Result<(), DataError> {
    match Magic::of_file(path) {
        Some(other) if !own.contains(&other) => Err(DataError::bad(path, 0, said(other))),
        _ => Ok(()),
    }
}

/// Tells the reader of a file of this type.
fn said(kind: Magic) -> String {
    let (what, ending, call) = kind.told();
    match (ending, call) {
        (_, "") => format!("this is {what}"),
        ("", call) => format!("this is {what}: in a program, `{call}` reads it"),
        (ending, call) => format!(
            "this is {what}: have its name end with {ending}, and in a program read it with `{call}`"
        ),
    }
}
