//! Where the rows of a table come from.

use std::path::{Path, PathBuf};

#[cfg(feature = "parquet")]
use crate::data::Columns;
use crate::data::Place;
#[cfg(feature = "parquet")]
use crate::data::Source as _;

/// Where rows come from.
#[derive(Debug)]
pub(super) enum Origin {
    /// A text, and the line of each row.
    Text { path: PathBuf, lines: Vec<u64> },
    #[cfg(feature = "parquet")]
    Columns(Columns),
}

impl Origin {
    pub(super) fn place(&self, row: usize) -> Place {
        match self {
            Self::Text { path, lines } => Place::Line {
                path: path.clone(),
                line: lines[row],
            },
            #[cfg(feature = "parquet")]
            Self::Columns(own) => own.place(0, row),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Text { path, .. } => path,
            #[cfg(feature = "parquet")]
            Self::Columns(own) => own.path(),
        }
    }

    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Text { lines, .. } => lines.len(),
            #[cfg(feature = "parquet")]
            Self::Columns(own) => own.len(),
        }
    }
}
