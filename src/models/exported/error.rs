//! Errors of exported programs.

use std::path::PathBuf;

use gpipe_partitioner::words::brief;
use thiserror::Error;

/// An error of loading a `.pt2` file.
#[derive(Debug, Error)]
#[error("{}: {reason}", path.display())]
pub struct ExportedError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    #[source]
    pub reason: ExportedReason,
}

/// Reason why a `.pt2` file is rejected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportedReason {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The file is not an archive of `torch.export.save`; the text identifies it and gives advice.
    #[error("{0}")]
    Foreign(String),
    /// A part of the file is damaged.
    #[error("{part}: {why}")]
    Damaged {
        /// The file in the archive, or part of the program.
        part: String,
        /// The problem.
        why: String,
    },
    /// The file has another version.
    #[error("{what} is {found}, but {wanted} is read: export the model with PyTorch 2.11")]
    Version {
        /// The versioned object.
        what: String,
        /// Version of the file.
        found: String,
        /// Supported version.
        wanted: String,
    },
    /// The program does something that stages do not support.
    #[error("{place}: {what}")]
    Unsupported {
        /// Place in the model: the node, and the module's path and class.
        place: String,
        /// The unsupported feature, and advice.
        what: String,
    },
}

pub(super) type Result<T> = std::result::Result<T, ExportedReason>;

pub(super) fn damaged(part: impl Into<String>, why: impl Into<String>) -> ExportedReason {
    ExportedReason::Damaged {
        part: brief(&part.into()).into_owned(),
        why: brief(&why.into()).into_owned(),
    }
}

pub(crate) fn unsupported(place: impl Into<String>, what: impl Into<String>) -> ExportedReason {
    ExportedReason::Unsupported {
        place: brief(&place.into()).into_owned(),
        what: brief(&what.into()).into_owned(),
    }
}
