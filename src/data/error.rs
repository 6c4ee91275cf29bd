//! What can go wrong with data, with the file and the byte where it did.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use gpipe_torch::TorchError;

/// Where an item comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A byte of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The item's first byte in it.
        offset: u64,
    },
    /// A line of a file.
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: u64,
    },
    /// A row of a table that is no text.
    Row {
        /// The file.
        path: PathBuf,
        /// From 0.
        row: usize,
    },
    /// A sample of a file of arrays.
    Sample {
        /// The file.
        path: PathBuf,
        /// From 0, as in Python.
        index: usize,
    },
    /// A whole file, or a folder.
    Path(PathBuf),
    /// An item of a source that is no file.
    Item(usize),
}

impl Place {
    /// A byte of a file.
    pub fn file(path: impl Into<PathBuf>, offset: u64) -> Self {
        Self::File {
            path: path.into(),
            offset,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, offset } => write!(f, "{}, byte {offset}", path.display()),
            Self::Line { path, line } => write!(f, "{}, line {line}", path.display()),
            Self::Row { path, row } => write!(f, "{}, row {row}", path.display()),
            Self::Sample { path, index } => write!(f, "{}, sample {index}", path.display()),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Item(index) => write!(f, "item {index}"),
        }
    }
}

/// Why there is no batch, or no loader.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file cannot be opened, read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        r#source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{place}: {what}")]
    Bad {
        /// The file and the byte.
        place: Place,
        /// What is wrong there.
        what: String,
    },
    /// Making an item failed or panicked.
    #[error("{place}: {source:#}")]
    Item {
        /// Where the item comes from.
        place: Place,
        /// Why there is no item.
        r#source: anyhow::Error,
    },
    /// Items cannot be made a batch.
    #[error("the batch that begins with {first}: {source:#}")]
    Batch {
        /// Where its first item comes from.
        first: Place,
        /// Why there is no batch.
        r#source: anyhow::Error,
    },
    /// A batch cannot be used on the device to which it was brought.
    #[error("a batch on its device: {0}")]
    Device(TorchError),
    /// More items of an epoch are bad than may be skipped.
    #[error("{bad} bad items in epoch {epoch} where {allowed} may be skipped; the last: {last}")]
    TooManyBad {
        /// Bad items so far.
        bad: u64,
        /// The epoch, from 0.
        epoch: u64,
        /// How many may be skipped.
        allowed: u64,
        /// The one that was one too many.
        last: Box<DataError>,
    },
    /// So many items of an epoch are bad that there is no batch.
    #[error("epoch {epoch} gives no batch: {bad} of its items are bad")]
    NoBatch {
        /// The epoch, from 0.
        epoch: u64,
        /// Bad items of it.
        bad: u64,
    },
    /// No batch came for as long as the loader was told to wait.
    #[error("no batch for {} s: still waiting for {place}", waited.as_secs_f64())]
    Slow {
        /// What the loader is waiting for.
        place: Place,
        /// How long it has waited.
        waited: Duration,
    },
    /// A saved position is one in other data.
    #[error("the saved position is one in other data: it was {saved}, this is {here}")]
    OtherData {
        /// What the position is one in.
        saved: String,
        /// What it was to be used for.
        here: String,
    },
    /// A saved position cannot be read.
    #[error("the saved position in the data cannot be read: {0}")]
    State(serde_json::Error),
    /// What was asked for cannot be.
    #[error("{0}")]
    Settings(String),
    /// The operating system gives no thread.
    #[error("cannot start a thread for loading data: {0}")]
    Thread(io::Error),
    /// A thread of the loader ended without a word.
    #[error("a thread that loads data was lost: {0}")]
    Lost(String),
    /// libtorch refused.
    #[error(transparent)]
    Torch(#[from] TorchError),
}

impl DataError {
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        let (action, path) = ("read", path.to_owned());
        Self::File {
            action,
            path,
            source,
        }
    }

    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        let (action, path) = ("write", path.to_owned());
        Self::File {
            action,
            path,
            source,
        }
    }

    /// The bytes from `offset` on are not what they should be.
    pub(crate) fn bad(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Bad {
            place: Place::file(path, offset),
            what: what.into(),
        }
    }

    /// Something is wrong with a whole file or folder.
    pub(crate) fn bad_path(path: &Path, what: impl Into<String>) -> Self {
        Self::Bad {
            place: Place::Path(path.to_owned()),
            what: what.into(),
        }
    }

    /// Where it went wrong, where that is known.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Bad { place, .. } | Self::Item { place, .. } | Self::Slow { place, .. } => {
                Some(place)
            }
            Self::Batch { first, .. } => Some(first),
            Self::TooManyBad { last, .. } => last.place(),
            _ => None,
        }
    }

    /// Whether the caller asked for something that cannot be, rather than something
    /// failed on the way.
    pub fn is_wrong_use(&self) -> bool {
        matches!(self, Self::Settings(_))
    }
}

impl From<tch::TchError> for DataError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}
