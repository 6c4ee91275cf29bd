//! What a file is, as its first bytes tell: who gives it to the reader of another kind is told which one to take.

use std::io::Read as _;
use std::path::Path;

use super::tokens::width::llm_c;
use super::{DataError, tf_record::frame};
use gpipe_partitioner::files;

/// Bytes that tell each kind: the header of a tar file.
const BYTES: u64 = 512;

/// A kind of file.
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
    /// What a file is that begins so; none where nothing tells.
    pub(super) fn of(start: &[u8]) -> Option<Self> {
        Some(match start {
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Self::Npy,
            [b'P', b'K', 3, 4, ..] => Self::Zip,
            // The length of a header, and the header.
            [_, _, _, _, 0, 0, 0, 0, b'{', b'"' | b' ' | b'}', ..] => Self::Safetensors,
            // A text may begin with these letters, but not go on so.
            [b'P', b'A', b'R', b'1' | b'E']
            | [b'P', b'A', b'R', b'1' | b'E', ..=0x1f | 0x80.., ..]
            | b"ARROW1"
            | [b'A', b'R', b'R', b'O', b'W', b'1', 0, ..] => Self::Columns,
            // A message of a stream: behind the mark its length, a multiple of 8.
            [0xff, 0xff, 0xff, 0xff, length, _, _, 0, ..] if length % 8 == 0 => Self::Columns,
            [0x89, b'H', b'D', b'F', b'\r', b'\n', ..] => Self::Hdf5,
            [0x89, b'P', b'N', b'G', ..] | [0xff, 0xd8, 0xff, ..] => Self::Image,
            [0x1f, 0x8b, ..]
            | [b'B', b'Z', b'h', _, b'1', b'A', b'Y', ..]
            | [0xfd, b'7', b'z', b'X', b'Z', ..]
            | [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Compressed,
            // The kinds of numbers that IDX has, and some dimensions.
            [0, 0, 8..=14, 1..=8, ..] => Self::Idx,
            start if frame::length(start).is_some() => Self::TfRecord,
            start if llm_c(start).is_some() => Self::LlmC,
            start if start.get(257..262) == Some(b"ustar") => Self::Tar,
            _ => return None,
        })
    }

    /// What the file at a path is; none also where it cannot be read.
    fn of_file(path: &Path) -> Option<Self> {
        let mut start = Vec::new();
        files::open(path)
            .ok()?
            .take(BYTES)
            .read_to_end(&mut start)
            .ok()?;
        Self::of(&start)
    }

    /// What it is, what its name ends with where the command reads it, and what reads it in a program.
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

/// That a file which one reader is to read is of no other kind, as far as its first bytes tell.
///
/// # Errors
/// It is: what it is, and which reader takes it.
pub(super) fn refuse_other(path: &Path, own: &[Magic]) -> Result<(), DataError> {
    match Magic::of_file(path) {
        Some(other) if !own.contains(&other) => Err(DataError::bad(path, 0, said(other))),
        _ => Ok(()),
    }
}

/// What is said of a file of this kind to who has given it to the reader of another.
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
