//! Errors of metrics files.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// An error of writing or reading metrics.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// An error of the operating system, such as a full disk.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The failed action.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        r#source: io::Error,
    },
    /// A line is not a step's metrics.
    #[error(
        "{}, line {line}: is no line of metrics ({why}): mend or remove the file",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: usize,
        /// The reason.
        why: String,
    },
    /// A record of an event file is damaged.
    #[error(
        "{}, byte {offset}: the record is damaged ({why}): remove the file; metrics.jsonl has the \
         same numbers",
        path.display()
    )]
    Record {
        /// The file.
        path: PathBuf,
        /// Offset of the record.
        offset: u64,
        /// The reason.
        why: &'static str,
    },
}

impl MetricsError {
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}
