//! Errors of checkpoints, with advice.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use gpipe_torch::Role;
use gpipe_torch::world::Lost;

/// An error of writing or using a checkpoint.
///
/// In any case, training can continue, and complete checkpoints stay complete.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or folder cannot be written.
    #[error("cannot {action} {}: {source}; {}", .path.display(), advice(.source))]
    Write {
        /// The failed action: `write`, `create`, `rename`, …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Error of the system.
        r#source: io::Error,
    },
    /// Another process is writing checkpoints there.
    #[error(
        "{}: another process is writing checkpoints here; wait for it to end, or choose another \
         folder", .folder.display()
    )]
    InUse {
        /// Returns the folder of checkpoints.
        folder: PathBuf,
    },
    /// The folder is not the one that this process locked.
    #[error(
        "{}: the folder that this process wrote its checkpoints into has been removed, moved or \
         replaced, or its file .lock has: nothing more is written there; give each run a folder of \
         its own, and leave it where it is while it trains", .folder.display()
    )]
    Lost {
        /// Returns the folder of checkpoints.
        folder: PathBuf,
    },
    /// Weights are NaN or infinite.
    #[error(
        "{}: {what} `{name}` is not finite: some of its numbers are NaN or infinite, and nothing can \
         be trained from them", .path.display()
    )]
    NotFinite {
        /// The shard.
        path: PathBuf,
        /// Kind of the tensor: a parameter, or optimizer state.
        what: &'static str,
        /// The parameter.
        name: String,
    },
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Error of the system.
        r#source: io::Error,
    },
    /// There is no checkpoint.
    #[error("{}: no checkpoint here (a folder named like step-00000100)", .folder.display())]
    None {
        /// Returns the folder of checkpoints.
        folder: PathBuf,
    },
    /// A file of the checkpoint is missing.
    #[error("{}: the file is missing, so the checkpoint is incomplete; use another one", .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A file's size differs from the manifest.
    #[error(
        "{}: the file has {found} bytes, but the manifest says {expected}: it was cut off, or \
         replaced; use another checkpoint", .path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Size in the manifest.
        expected: u64,
        /// Actual size.
        found: u64,
    },
    /// A file's checksum is wrong.
    #[error(
        "{}: the checksum is wrong: the file has been damaged or changed since it was written; \
         use another checkpoint", .path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
    },
    /// A file is not part of this checkpoint.
    #[error("{}: not a file of this checkpoint: {why}", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The manifest has another version of the format.
    #[error(
        "{}: a checkpoint of version {found}, but this program reads version {known}; use the \
         program that wrote it, or a newer one", .path.display()
    )]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that can be read.
        known: u64,
    },
    /// The checkpoint is of another model or optimizer.
    #[error("{}: the checkpoint does not fit: {why}", .path.display())]
    Fit {
        /// The shard, or the folder if a tensor is in no shard.
        path: PathBuf,
        /// The mismatch.
        why: String,
    },
    /// A tensor has a type that safetensors files do not support.
    #[error("`{name}` has numbers of type {kind}, which a checkpoint cannot hold")]
    Kind {
        /// The parameter or buffer.
        name: String,
        /// Its type, as libtorch calls it.
        kind: String,
    },
    /// The writing thread ended without a result.
    #[error("writing {} broke off: {why}", .folder.display())]
    Broken {
        /// Returns the folder of checkpoints.
        folder: PathBuf,
        /// Message of the thread.
        why: String,
    },
    /// The pipeline failed.
    #[error(transparent)]
    Pipeline(#[from] gpipe_torch::Error),
    /// Processes that write together do not share a folder.
    #[error(
        "{}: all processes must write their checkpoints to one folder, and {why}; choose one on a \
         file system that all hosts share", .folder.display()
    )]
    NotShared {
        /// Returns the folder of checkpoints.
        folder: PathBuf,
        /// The mismatch.
        why: String,
    },
    /// One of several processes failed; all return this error.
    #[error("rank {rank} on `{host}`: {error}")]
    Elsewhere {
        /// The lowest rank that failed.
        rank: usize,
        /// Its host.
        host: String,
        /// Its error: see [`CheckpointError::cause`].
        error: Box<CheckpointError>,
    },
    /// Another process's error, as text.
    #[error("{why}")]
    Told {
        /// Text of the error.
        why: String,
        /// Its [`CheckpointError::is_damage`].
        damage: bool,
        /// Its [`CheckpointError::is_wrong_use`].
        wrong_use: bool,
    },
    /// A process is lost, along with its part of the checkpoint.
    #[error(transparent)]
    World(#[from] Lost),
}

impl CheckpointError {
    /// Whether the checkpoint itself is invalid, so that an older one may help.
    pub fn is_damage(&self) -> bool {
        matches!(
            self.cause(),
            Self::Read { .. }
                | Self::Missing { .. }
                | Self::Size { .. }
                | Self::Checksum { .. }
                | Self::Foreign { .. }
                | Self::NotFinite { .. }
                | Self::Told { damage: true, .. }
        )
    }

    /// Returns the original error, of whichever process.
    pub fn cause(&self) -> &Self {
        match self {
            Self::Elsewhere { error, .. } => error.cause(),
            error => error,
        }
    }

    /// Returns the lost process, if that is the reason.
    pub fn lost(&self) -> Option<&Lost> {
        match self {
            Self::World(lost) => Some(lost),
            _ => None,
        }
    }

    /// Whether the caller's request was invalid, as opposed to a failure at run time.
    pub fn is_wrong_use(&self) -> bool {
        match self.cause() {
            Self::None { .. }
            | Self::Fit { .. }
            | Self::Version { .. }
            | Self::InUse { .. }
            | Self::NotShared { .. }
            | Self::Told {
                wrong_use: true, ..
            } => true,
            Self::Pipeline(error) => error.is_wrong_use(),
            _ => false,
        }
    }

    pub(super) fn write(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Write {
            action,
            path: path.to_owned(),
            source,
        }
    }

    pub(super) fn read(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        if source.kind() == io::ErrorKind::NotFound {
            return Self::Missing { path };
        }
        Self::Read { path, source }
    }

    pub(super) fn not_finite(path: &Path, role: &Role, name: String) -> Self {
        Self::NotFinite {
            path: path.to_owned(),
            what: role.in_words(),
            name,
        }
    }

    pub(super) fn foreign(path: &Path, why: impl Into<String>) -> Self {
        Self::Foreign {
            path: path.to_owned(),
            why: why.into(),
        }
    }

    pub(super) fn fit(path: &Path, why: impl Into<String>) -> Self {
        Self::Fit {
            path: path.to_owned(),
            why: why.into(),
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::StorageFull => {
            "free some space, keep fewer checkpoints, or choose a folder on another disk"
        }
        Kind::QuotaExceeded | Kind::FileTooLarge => {
            "raise the limit, or choose a folder that has none"
        }
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => {
            "choose a folder that you may write to"
        }
        Kind::NotADirectory | Kind::AlreadyExists => "choose another folder",
        _ => "checkpoints from before are as they were",
    }
}
