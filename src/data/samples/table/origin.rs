//! Origins of a table's rows.

use std::path::{Path, PathBuf};

#[cfg(feature = "parquet")]
use crate::Columns;
use crate::Place;
#[cfg(feature = "parquet")]
use crate::Source as _;

/// The origin of rows.
#[derive(Debug)]
pub(super) enum Origin {
    /// A text file, and the line of each row.
    Text { path: PathBuf, lines: Vec<u64> },
    #[cfg(feature = "parquet")]
    Columns {
        own: Columns,
        /// Indices of the rows used.
        rows: Vec<usize>,
    },
}

impl Origin {
    pub(super) fn place(&self, row: usize) -> Place {
        match self {
            Self::Text { path, lines } => Place::Line {
                path: path.clone(),
                line: lines[row],
            },
            #[cfg(feature = "parquet")]
            Self::Columns { own, rows } => own.place(0, rows[row]),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Text { path, .. } => path,
            #[cfg(feature = "parquet")]
            Self::Columns { own, .. } => own.path(),
        }
    }

    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Text { lines, .. } => lines.len(),
            #[cfg(feature = "parquet")]
            Self::Columns { rows, .. } => rows.len(),
        }
    }
}
