//! Bytes that an array is in: a stretch of a file, or of memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::DataError;
use crate::disk_file::DiskFile;

/// A stretch of bytes, read at any place by any number of threads.
#[derive(Debug, Clone)]
pub(super) struct Part {
    holder: Holder,
    /// Where it begins.
    start: u64,
    len: u64,
    /// The stretch that it is within, of which the file tells the checksum.
    summed: Option<Summed>,
}

/// A stretch and its CRC-32.
#[derive(Debug, Clone, Copy)]
struct Summed {
    start: u64,
    len: u64,
    sum: u32,
}

/// Bytes that a checksum is made of at a time.
const BLOCK: usize = 1 << 20;

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
            summed: None,
            holder: Holder::File(Arc::new(file)),
        })
    }

    /// Bytes that were made from those of a file.
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

    /// A stretch of this one; none where it is not inside.
    pub(super) fn within(&self, start: u64, len: u64) -> Option<Self> {
        let end = start.checked_add(len).filter(|end| *end <= self.len)?;
        Some(Self {
            holder: self.holder.clone(),
            start: self.start + start,
            len: end - start,
            summed: self.summed,
        })
    }

    /// The same, whose CRC-32 is to be this.
    pub(super) fn with_sum(mut self, sum: u32) -> Self {
        let (start, len) = (self.start, self.len);
        self.summed = Some(Summed { start, len, sum });
        self
    }

    /// That the stretch of which the checksum is known is not damaged, where there is one.
    ///
    /// # Errors
    /// It is, or cannot be read.
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
