//! Byte ranges that hold arrays, in a file or in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::DataError;
use crate::disk_file::DiskFile;

/// A byte range, readable at any position from any thread.
#[derive(Debug, Clone)]
pub(super) struct Part {
    holder: Holder,
    /// Start of the range.
    start: u64,
    len: u64,
    /// The enclosing range with a checksum, if the file has one.
    summed: Option<Summed>,
}

/// A byte range and its CRC-32.
#[derive(Debug, Clone, Copy)]
struct Summed {
    start: u64,
    len: u64,
    sum: u32,
}

/// Bytes hashed at a time.
const BLOCK: usize = 1 << 20;

#[derive(Debug, Clone)]
enum Holder {
    File(Arc<DiskFile>),
    /// The decompressed contents of a file.
    Memory {
        path: PathBuf,
        bytes: Arc<[u8]>,
    },
}

impl Part {
    /// Returns a whole file.
    pub(super) fn file(path: &Path) -> Result<Self, DataError> {
        let file = DiskFile::open(path)?;
        Ok(Self {
            start: 0,
            len: file.len(),
            summed: None,
            holder: Holder::File(Arc::new(file)),
        })
    }

    /// Wraps bytes decompressed from a file.
    pub(super) fn memory(path: &Path, bytes: Vec<u8>) -> Self {
        Self {
            start: 0,
            len: bytes.len() as u64,
            summed: None,
            holder: Holder::Memory {
                path: path.to_owned(),
                bytes: bytes.into(),
            },
        }
    }

    /// Returns a subrange, or `None` if it is out of bounds.
    pub(super) fn within(&self, start: u64, len: u64) -> Option<Self> {
        let end = start.checked_add(len).filter(|end| *end <= self.len)?;
        Some(Self {
            holder: self.holder.clone(),
            start: self.start + start,
            len: end - start,
            summed: self.summed,
        })
    }

    /// Sets the expected CRC-32 of the range.
    pub(super) fn with_sum(mut self, sum: u32) -> Self {
        let (start, len) = (self.start, self.len);
        self.summed = Some(Summed { start, len, sum });
        self
    }

    /// Verifies the checksum, if there is one.
    ///
    /// # Errors
    /// The checksum differs, or the range cannot be read.
    pub(super) fn check_sum(&self, what: &str) -> Result<(), DataError> {
        let Some(Summed { start, len, sum }) = self.summed else {
            return Ok(());
        };
        let whole = Self {
            start,
            len,
            ..self.clone()
        };
        let (mut hasher, mut at) = (crc32fast::Hasher::new(), 0);
        let mut bytes = vec![0; BLOCK.min(len as usize)];
        while at < len {
            let block = bytes.len().min((len - at) as usize);
            whole.read(&mut bytes[..block], at)?;
            hasher.update(&bytes[..block]);
            at += block as u64;
        }
        let own = hasher.finalize();
        if own == sum {
            return Ok(());
        }
        let why = format!(
            "{what} is damaged: its checksum is {own:08x}, and the file says {sum:08x}: was it copied \
             whole?"
        );
        Err(whole.bad(0, why))
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

    pub(super) fn bad(&self, offset: u64, what: impl Into<String>) -> DataError {
        DataError::bad(self.path(), self.start + offset, what)
    }

    /// Fills `into` with the bytes from `offset` on.
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
