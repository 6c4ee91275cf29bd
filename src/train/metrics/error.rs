//! What can go wrong with files of metrics.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why metrics cannot be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The operating system refuses: the disk is full, say.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        r#source: io::Error,
    },
    /// A line that is not what a step leaves.
    #[error(
        "{}, line {line}: is no line of metrics ({why}): mend or remove the file",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// Error of the list.
        why: String,
    },
    /// A record of an event file that is not what was written.
    #[error(
        "{}, byte {offset}: the record is damaged ({why}): remove the file; metrics.jsonl has the \
         same numbers",
        path.display()
    )]
    Record {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        offset: u64,
        /// Error of the list.
        why: &'static str,
    },
}

impl MetricsError {
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}
