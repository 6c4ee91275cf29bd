//! File system operations of writing a checkpoint.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::error::CheckpointError;

/// Every change of a checkpoint on disk goes through this trait, so that a test can interrupt it, or
/// make it fail, at every single operation.
pub(super) trait Disk: Send + Sync {
    /// Creates a new folder.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Creates a new file for writing.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Durable>>;
    /// Syncs a folder's entries to the disk.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Renames within a folder.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a folder recursively.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
    /// Checks that the folder of checkpoints is still the original one.
    ///
    /// # Errors
    /// [`CheckpointError::Lost`].
    fn check(&self) -> Result<(), CheckpointError> {
        Ok(())
    }
}

/// A file being written.
pub(super) trait Durable: Write + Send {
    /// Syncs the file to the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// The real file system.
#[derive(Debug, Clone, Copy)]
pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Durable>> {
        Ok(Box::new(File::create_new(path)?))
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}

impl Durable for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}
