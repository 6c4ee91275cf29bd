//! What can be wrong with an exported program.

use std::path::PathBuf;

use gpipe_partitioner::words::brief;
use thiserror::Error;

/// Why a `.pt2` file was not taken.
#[derive(Debug, Error)]
#[error("{}: {reason}", path.display())]
pub struct ExportedError {
    /// The file.
    pub path: PathBuf,
    /// Error of the list.
    #[source]
    pub reason: ExportedReason,
}

/// What is wrong with a `.pt2` file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportedReason {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// It is no archive that `torch.export.save` writes: what it is, and what to do.
    #[error("{0}")]
    Foreign(String),
    /// A part of it is damaged.
    #[error("{part}: {why}")]
    Damaged {
        /// The file in the archive, or part of the program.
        part: String,
        /// Error of the list.
        why: String,
    },
    /// It is of another version.
    #[error("{what} is {found}, but {wanted} is read: export the model with PyTorch 2.11")]
    Version {
        /// Of what.
        what: String,
        /// That of the file.
        found: String,
        /// That which is read.
        wanted: String,
    },
    /// The program does what stages cannot.
    #[error("{place}: {what}")]
    Unsupported {
        /// Where in the model: the node, and the module's path and class.
        place: String,
        /// What is not taken, and what to do.
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
