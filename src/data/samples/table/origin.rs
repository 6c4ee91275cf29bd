//! Where the rows of a table come from.

use std::path::{Path, PathBuf};

#[cfg(feature = "parquet")]
use crate::Columns;
use crate::Place;
#[cfg(feature = "parquet")]
use crate::Source as _;

/// Where rows come from.
#[derive(Debug)]
pub(super) enum Origin {
    /// A text, and the line of each row.
    Text { path: PathBuf, lines: Vec<u64> },
    #[cfg(feature = "parquet")]
    Columns {
        own: Columns,
        /// The places of those rows that are taken.
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
