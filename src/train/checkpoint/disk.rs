//! The few things that writing a checkpoint asks of a file system.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::error::CheckpointError;

/// Everything that a checkpoint changes on a disk goes through here, so that a test
/// can stop it, or let it fail, at every single operation.
pub(super) trait Disk: Send + Sync {
    /// Makes a folder that does not exist.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Makes a file that does not exist, for writing.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Durable>>;
    /// What is in a folder (which files, that is) is safe from a loss of power
    /// when this returns.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// Renames within a folder.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a folder with all that is in it.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
    /// That the folder of checkpoints is still the one that was asked for.
    ///
    /// # Errors
    /// [`CheckpointError::Lost`].
    fn check(&self) -> Result<(), CheckpointError> {
        Ok(())
    }
}

/// A file that is being written.
pub(super) trait Durable: Write + Send {
    /// All that was written is safe from a loss of power when this returns.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system.
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
