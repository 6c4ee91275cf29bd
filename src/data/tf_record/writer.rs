//! Writer of shards.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::frame;
use crate::DataError;

/// Writes a TFRecord file, which TensorFlow can read.
#[derive(Debug)]
pub struct TfRecordWriter {
    path: PathBuf,
    file: BufWriter<File>,
}

impl TfRecordWriter {
    /// Creates a file, replacing an existing one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path) -> Result<Self, DataError> {
        let file = File::create(path).map_err(|source| DataError::write(path, source))?;
        Ok(Self::new(path, file))
    }

    pub(crate) fn new(path: &Path, file: File) -> Self {
        Self {
            path: path.to_owned(),
            file: BufWriter::new(file),
        }
    }

    /// Appends a record; returns its size in the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, data: &[u8]) -> Result<u64, DataError> {
        let length = data.len() as u64;
        let write = self
            .file
            .write_all(&frame::header(length))
            .and_then(|()| self.file.write_all(data))
            .and_then(|()| self.file.write_all(&frame::masked(data)));
        write.map_err(|source| DataError::write(&self.path, source))?;
        Ok(length + frame::AROUND)
    }

    /// Passes everything to the operating system.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> Result<(), DataError> {
        let flushed = self.file.flush();
        flushed.map_err(|source| DataError::write(&self.path, source))
    }

    /// Finishes the file and syncs it to the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<(), DataError> {
        self.flush()?;
        let synced = self.file.get_ref().sync_all();
        synced.map_err(|source| DataError::write(&self.path, source))
    }
}
