//! Errors of data, with file and byte.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use gpipe_torch::TorchError;

/// Origin of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A byte of a file.
    File {
        /// The file.
        path: PathBuf,
        /// Offset of the item's first byte.
        offset: u64,
    },
    /// A line of a file.
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
    },
    /// A row of a binary table.
    Row {
        /// The file.
        path: PathBuf,
        /// The row, from 0.
        row: usize,
    },
    /// A sample of an array file.
    Sample {
        /// The file.
        path: PathBuf,
        /// The sample, from 0 as in Python.
        index: usize,
    },
    /// A whole file, or a folder.
    Path(PathBuf),
    /// An item of a source that is not a file.
    Item(usize),
}

impl Place {
    /// Makes a place from a file and a byte offset.
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

/// An error of loading batches or of creating a loader.
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
    /// A file has invalid contents.
    #[error("{place}: {what}")]
    Bad {
        /// File and byte.
        place: Place,
        /// The problem.
        what: String,
    },
    /// Making an item failed or panicked.
    #[error("{place}: {source:#}")]
    Item {
        /// Origin of the item.
        place: Place,
        /// The cause.
        r#source: anyhow::Error,
    },
    /// Items cannot be stacked to a batch.
    #[error("the batch that begins with {first}: {source:#}")]
    Batch {
        /// Origin of the first item.
        first: Place,
        /// The cause.
        r#source: anyhow::Error,
    },
    /// A batch cannot be used on its device.
    #[error("a batch on its device: {0}")]
    Device(TorchError),
    /// An epoch has more bad items than may be skipped.
    #[error("{bad} bad items in epoch {epoch} where {allowed} may be skipped; the last: {last}")]
    TooManyBad {
        /// Number of bad items so far.
        bad: u64,
        /// The epoch, from 0.
        epoch: u64,
        /// Number of items that may be skipped.
        allowed: u64,
        /// The error that exceeded the limit.
        last: Box<DataError>,
    },
    /// An epoch has too many bad items to give a batch.
    #[error("epoch {epoch} gives no batch: {bad} of its items are bad")]
    NoBatch {
        /// The epoch, from 0.
        epoch: u64,
        /// Number of bad items.
        bad: u64,
    },
    /// No batch came within the loader's patience.
    #[error("no batch for {} s: still waiting for {place}", waited.as_secs_f64())]
    Slow {
        /// Place of the awaited item.
        place: Place,
        /// Time waited so far.
        waited: Duration,
    },
    /// A saved position belongs to other data.
    #[error("the saved position is one in other data: it was {saved}, this is {here}")]
    OtherData {
        /// Data of the saved position.
        saved: String,
        /// Data at hand.
        here: String,
    },
    /// A saved position cannot be read.
    #[error("the saved position in the data cannot be read: {0}")]
    State(serde_json::Error),
    /// Invalid settings.
    #[error("{0}")]
    Settings(String),
    /// The operating system cannot create a thread.
    #[error("cannot start a thread for loading data: {0}")]
    Thread(io::Error),
    /// A thread of the loader ended unexpectedly.
    #[error("a thread that loads data was lost: {0}")]
    Lost(String),
    /// An error of libtorch.
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

    /// Makes an error about the bytes from `offset` on.
    pub(crate) fn bad(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Bad {
            place: Place::file(path, offset),
            what: what.into(),
        }
    }

    /// Makes an error about a whole file or folder.
    pub(crate) fn bad_path(path: &Path, what: impl Into<String>) -> Self {
        Self::Bad {
            place: Place::Path(path.to_owned()),
            what: what.into(),
        }
    }

    /// Returns the place of the error, if known.
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

    /// Whether the caller's request was invalid, as opposed to a failure at run time.
    pub fn is_wrong_use(&self) -> bool {
        matches!(self, Self::Settings(_))
    }
}

impl From<tch::TchError> for DataError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}
