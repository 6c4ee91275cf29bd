//! Write access to a folder of checkpoints: by the process that holds its lock.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::disk::{Disk, Durable};
use super::error::CheckpointError;
use gpipe_partitioner::files;

/// Name of the lock file in a folder of checkpoints.
pub(super) const FILE: &str = ".lock";
/// Number of times that a folder may be removed between creating its lock file and locking it, before
/// another process is assumed to be at work.
const ATTEMPTS: usize = 16;

/// A locked file, unlocked when dropped.
///
/// The lock is on the file, but everything else uses names: if the folder has been removed, moved or
/// replaced, the names lead nowhere, or to another run, and the lock protects nothing. So
/// [`Lock::is_held`] also checks the name.
#[derive(Debug)]
pub(super) struct Lock {
    folder: PathBuf,
    file: File,
}

impl Lock {
    /// Locks an existing folder.
    ///
    /// # Errors
    /// Another process has locked it, or the file cannot be created.
    pub(super) fn take(folder: &Path) -> Result<Self, CheckpointError> {
        for _ in 0..ATTEMPTS {
            let file = locked(folder)?;
            let lock = Self {
                folder: folder.to_owned(),
                file,
            };
            if lock.is_held() {
                return Ok(lock);
            }
        }
        Err(in_use(folder))
    }

    /// Writes a unique text to the lock file, which the other processes of a world must find there.
    /// *Returns* the text.
    pub(super) fn sign(&self, host: &str) -> Result<String, CheckpointError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos();
        let text = format!("process {} on {host} at {now}", std::process::id());
        let mut file = &self.file;
        let signed = file
            .set_len(0)
            .and_then(|()| file.write_all(text.as_bytes()));
        let path = self.folder.join(FILE);
        let failed = |error| CheckpointError::write("write", &path, error);
        signed.and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(text)
    }

    /// Returns the lock of a folder that another process, `who`, holds and has [signed](Lock::sign).
    ///
    /// # Errors
    /// There is no such folder, or it is another one.
    pub(super) fn seen(folder: &Path, text: &str, who: &str) -> Result<Self, CheckpointError> {
        let other = |why: String| CheckpointError::NotShared {
            folder: folder.to_owned(),
            why,
        };
        let path = folder.join(FILE);
        // Clients of network file systems cache missing entries for a while; listing the parent folder
        // refreshes the cache.
        if !path.exists() {
            let _ = fs::read_dir(folder.join("..")).map(Iterator::count);
            let _ = fs::read_dir(folder).map(Iterator::count);
        }
        let unseen = |error: io::Error| {
            other(format!(
                "the file .lock that {who} has made there is not seen here ({error})"
            ))
        };
        let file = files::open(&path).map_err(unseen)?;
        let mut found = String::new();
        let longest = text.len() as u64 + 1;
        let read = (&file).take(longest).read_to_string(&mut found);
        read.map_err(unseen)?;
        if found != text {
            return Err(other(format!(
                "the file .lock here is not the one of {who}"
            )));
        }
        Ok(Self {
            folder: folder.to_owned(),
            file,
        })
    }

    /// Whether the folder's lock file is still the locked one. A file system that cannot tell at the
    /// moment does not count against that.
    pub(super) fn is_held(&self) -> bool {
        match (fs::metadata(self.folder.join(FILE)), self.file.metadata()) {
            (Ok(there), Ok(own)) => same(&there, &own),
            (Err(error), _) => !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ),
            (Ok(_), Err(_)) => true,
        }
    }

    /// # Errors
    /// [`CheckpointError::Lost`] if it is not [held](Lock::is_held).
    pub(super) fn check(&self) -> Result<(), CheckpointError> {
        if self.is_held() {
            return Ok(());
        }
        Err(CheckpointError::Lost {
            folder: self.folder.clone(),
        })
    }
}

/// Whether both are of the same file or folder.
pub(super) fn same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn locked(folder: &Path) -> Result<File, CheckpointError> {
    let path = folder.join(FILE);
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false);
    let opened = files::check_if_any(&path).and_then(|()| options.open(&path));
    let file = opened.map_err(|error| CheckpointError::write("create", &path, error))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(in_use(folder)),
        // Not every file system supports locks.
        Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
            Err(CheckpointError::write("lock", &path, error))
        }
        _ => Ok(file),
    }
}

fn in_use(folder: &Path) -> CheckpointError {
    CheckpointError::InUse {
        folder: folder.to_owned(),
    }
}

/// A disk that is changed only while a lock is held: a process whose folder was replaced must not write
/// to, or prune, another run's checkpoints.
pub(super) struct Locked<D> {
    pub(super) disk: D,
    pub(super) lock: Arc<Lock>,
}

impl<D: Disk> Locked<D> {
    fn disk(&self) -> io::Result<&D> {
        if self.lock.is_held() {
            return Ok(&self.disk);
        }
        Err(io::Error::other("the lock is not held any more"))
    }
}

impl<D: Disk> Disk for Locked<D> {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.disk()?.make_folder(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Durable>> {
        self.disk()?.create(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.disk()?.sync_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk()?.rename(from, to)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.disk()?.remove_folder(path)
    }

    fn check(&self) -> Result<(), CheckpointError> {
        self.lock.check()
    }
}
