//! Files of a checkpoint being read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::CheckpointError;
use super::manifest::ShardEntry;

/// An open shard, for repeated reading.
///
/// The open file stays readable after its name is gone: a training process may remove the checkpoint at
/// any moment, once it has written newer ones.
#[derive(Debug, Clone)]
pub(super) struct ShardFile {
    pub(super) path: PathBuf,
    pub(super) entry: ShardEntry,
    file: Arc<File>,
}

impl ShardFile {
    /// Opens a file of the right size.
    pub(super) fn open(folder: &Path, entry: &ShardEntry) -> Result<Self, CheckpointError> {
        let path = folder.join(&entry.file);
        let failed = |error| CheckpointError::read(&path, error);
        // Checked before opening: opening a pipe would wait for a writer.
        let about = std::fs::metadata(&path).map_err(failed)?;
        if !about.is_file() {
            return Err(CheckpointError::foreign(&path, "it is not a file"));
        }
        let file = Arc::new(File::open(&path).map_err(failed)?);
        let shard = Self {
            entry: entry.clone(),
            path,
            file,
        };
        shard.bytes()?;
        Ok(shard)
    }

    /// Returns the bytes from the beginning, as many as in the manifest.
    ///
    /// # Errors
    /// The size differs.
    pub(super) fn bytes(&self) -> Result<io::Take<Bytes<'_>>, CheckpointError> {
        let about = self.file.metadata();
        let found = about
            .map_err(|error| CheckpointError::read(&self.path, error))?
            .len();
        if found != self.entry.bytes {
            return Err(CheckpointError::Size {
                path: self.path.clone(),
                expected: self.entry.bytes,
                found,
            });
        }
        let bytes = Bytes {
            file: &self.file,
            place: 0,
        };
        Ok(bytes.take(found))
    }
}

/// Reads a file from its beginning, independently of others who share it.
pub(super) struct Bytes<'a> {
    file: &'a File,
    place: u64,
}

impl Read for Bytes<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.place)?;
        self.place += count as u64;
        Ok(count)
    }
}
