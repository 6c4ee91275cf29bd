//! Bytes that an array is in: a stretch of a file, or of memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::disk_file::DiskFile;
use crate::data::{DataError, Place};

/// A stretch of bytes, read at any place by any number of threads.
#[derive(Debug, Clone)]
pub(super) struct Part {
    holder: Holder,
    /// Where it begins.
    start: u64,
    len: u64,
}

#[derive(Debug, Clone)]
enum Holder {
    File(Arc<DiskFile>),
    /// What was compressed in a file.
    Memory {
        path: PathBuf,
        bytes: Arc<[u8]>,
    },
}

impl Part {
    /// A whole file.
    pub(super) fn file(path: &Path) -> Result<Self, DataError> {
        let file = DiskFile::open(path)?;
        Ok(Self {
            start: 0,
            len: file.len(),
            holder: Holder::File(Arc::new(file)),
        })
    }

    /// Bytes that were made from those of a file.
    pub(super) fn memory(path: &Path, bytes: Vec<u8>) -> Self {
        Self {
            start: 0,
            len: bytes.len() as u64,
            holder: Holder::Memory {
                path: path.to_owned(),
                bytes: bytes.into(),
            },
        }
    }

    /// A stretch of this one; none where it is not inside.
    pub(super) fn within(&self, start: u64, len: u64) -> Option<Self> {
        let end = start.checked_add(len).filter(|end| *end <= self.len)?;
        Some(Self {
            holder: self.holder.clone(),
            start: self.start + start,
            len: end - start,
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn path(&self) -> &Path {
        match &self.holder {
            Holder::File(file) => file.path(),
            Holder::Memory { path, .. } => path,
        }
    }

    pub(super) fn place(&self, offset: u64) -> Place {
        Place::file(self.path(), self.start + offset)
    }

    pub(super) fn bad(&self, offset: u64, what: impl Into<String>) -> DataError {
        DataError::bad(self.path(), self.start + offset, what)
    }

    /// Fills `into` with what is from `offset` on.
    pub(super) fn read(&self, into: &mut [u8], offset: u64) -> Result<(), DataError> {
        match &self.holder {
            Holder::File(file) => file.read(into, self.start + offset),
            Holder::Memory { bytes, .. } => {
                let from = (self.start + offset) as usize;
                into.copy_from_slice(&bytes[from..from + into.len()]);
                Ok(())
            }
        }
    }
}
