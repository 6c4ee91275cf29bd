//! Files with random access.
//!
//! They are not memory-mapped: if another process truncates a mapped file, accessing the lost pages
//! kills this process. Reading costs a system call per part, and the page cache is shared between
//! processes all the same.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::DataError;
use gpipe_partitioner::files;

/// A file readable at any position from any thread.
#[derive(Debug)]
pub(super) struct DiskFile {
    path: PathBuf,
    file: File,
    /// Size when it was opened.
    len: u64,
}

impl DiskFile {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let read = |source| DataError::read(path, source);
        let file = files::open(path).map_err(read)?;
        Ok(Self {
            path: path.to_owned(),
            len: file.metadata().map_err(read)?.len(),
            file,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `bytes` with the file's contents from `offset` on, which must be within its original size.
    ///
    /// # Errors
    /// The file cannot be read, or has been truncated since.
    pub(super) fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), DataError> {
        self.file
            .read_exact_at(bytes, offset)
            .map_err(|error| match (error.kind(), self.file.metadata()) {
                (ErrorKind::UnexpectedEof, Ok(now)) => {
                    let what = format!(
                        "the file has been cut off since it was opened: it has {} bytes, and had {}",
                        now.len(),
                        self.len
                    );
                    DataError::bad(&self.path, offset, what)
                }
                _ => DataError::read(&self.path, error),
            })
    }
}
