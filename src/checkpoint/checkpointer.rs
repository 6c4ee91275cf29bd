//! Writes checkpoints while training goes on.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::disk::{Disk, RealDisk};
use super::error::CheckpointError;
use super::extras::Extras;
use super::folder;
use super::shard;
use super::write::{self, Copied, Saved};
use crate::panics::panic_message;
use crate::{Optimizer, Pipeline};

/// Saves a run in a folder, again and again.
///
/// [`Checkpointer::save`] copies everything on the stages' own threads, which is
/// all that training waits for; the copies are written while it goes on. At every
/// moment, whatever happens to the process, the machine or the disk, the last
/// checkpoint that was whole is there to be loaded.
///
/// ```
/// use gpipe::checkpoint::{Checkpoint, Checkpointer, Extras};
/// # use gpipe::{AdamW, Optimizer, Pipeline, Sequential, tch::{Device, Kind, Tensor, nn}};
/// # let folder = tempfile::tempdir()?;
/// # let model = Sequential::new().layer("head", |p| nn::linear(p, 8, 2, Default::default()));
/// # let mut pipe = Pipeline::new(model, &[Device::Cpu], 2)?;
/// # let mut optimizer = Optimizer::new(AdamW::default());
/// # let x = Tensor::ones([4, 8], (Kind::Float, Device::Cpu));
/// # let y = Tensor::zeros([4, 2], (Kind::Float, Device::Cpu));
/// # let loss_fn = |out: &Tensor, y: &Tensor| out.mse_loss(y, gpipe::tch::Reduction::Sum);
/// let mut checkpointer = Checkpointer::new(folder.path().join("checkpoints"))?.keep(2);
/// for step in 1..=4 {
///     pipe.train_step(&x, &y, loss_fn)?;
///     optimizer.step(&mut pipe)?;
///     checkpointer.save(&mut pipe, &optimizer, Extras::new(step))?;
/// }
/// checkpointer.finish()?;
///
/// let newest = Checkpoint::newest(folder.path().join("checkpoints"))?;
/// newest.restore(&mut pipe, &mut optimizer)?;
/// assert_eq!(newest.extras().step, 4);
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct Checkpointer {
    folder: PathBuf,
    keep: usize,
    disk: Arc<dyn Disk>,
    writing: Option<JoinHandle<Result<Saved, CheckpointError>>>,
    /// Locked, so that no other process writes there; unlocked when it is closed.
    _lock: File,
}

impl Checkpointer {
    /// For checkpoints in `folder`, which is made if it does not exist. What
    /// processes left there that were killed while they wrote is cleaned up.
    /// The three newest checkpoints are kept; see [`Checkpointer::keep`].
    ///
    /// # Errors
    /// The folder cannot be made or written to, or another process writes there.
    pub fn new(folder: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        Self::on(Arc::new(RealDisk), folder.into())
    }

    fn on(disk: Arc<dyn Disk>, folder: PathBuf) -> Result<Self, CheckpointError> {
        make(&folder)?;
        let lock = lock(&folder)?;
        folder::recover(&*disk, &folder)?;
        Ok(Self {
            folder,
            keep: 3,
            disk,
            writing: None,
            _lock: lock,
        })
    }

    /// Keeps the `keep` newest checkpoints, and at least one: an old one is removed
    /// after a new one has become whole. Checkpoints of later steps than the new
    /// one's, from before the run was taken up again at an earlier step, are removed
    /// with them.
    #[must_use]
    pub fn keep(mut self, keep: usize) -> Self {
        self.keep = keep.max(1);
        self
    }

    /// Copies parameters, buffers, accumulated gradients, what `optimizer`
    /// remembers and what random layers draw from, on every stage's own thread; has
    /// them written on other threads, and returns.
    ///
    /// If the checkpoint before is still being written, this waits for it: there is
    /// never more than one copy in the host's memory.
    ///
    /// # Errors
    /// The checkpoint before could not be written: nothing has been copied then, and
    /// the next call saves again. A stage's thread is gone.
    pub fn save(
        &mut self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        extras: Extras,
    ) -> Result<(), CheckpointError> {
        self.finish()?;
        let stages = pipe.snapshot(optimizer)?;
        stages.iter().try_for_each(|stage| shard::check(stage))?;
        let copied = Copied {
            extras,
            draws: pipe.draws(),
            stages,
        };
        let (disk, folder, keep) = (Arc::clone(&self.disk), self.folder.clone(), self.keep);
        let writer = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || write::write(&*disk, &folder, keep, copied));
        let failed = |error| CheckpointError::write("write", &self.folder, error);
        self.writing = Some(writer.map_err(failed)?);
        Ok(())
    }

    /// What has become of the last [`Checkpointer::save`], if that is known by now;
    /// does not wait. Tells it once.
    ///
    /// # Errors
    /// The checkpoint could not be written.
    pub fn check(&mut self) -> Result<Option<Saved>, CheckpointError> {
        if self.writing.as_ref().is_some_and(JoinHandle::is_finished) {
            return self.finish();
        }
        Ok(None)
    }

    /// Waits until the last checkpoint is written. Tells it once.
    ///
    /// # Errors
    /// The checkpoint could not be written.
    pub fn finish(&mut self) -> Result<Option<Saved>, CheckpointError> {
        let Some(writing) = self.writing.take() else {
            return Ok(None);
        };
        let written = writing.join().unwrap_or_else(|panic| {
            Err(CheckpointError::Broken {
                folder: self.folder.clone(),
                why: panic_message(&*panic),
            })
        });
        written.map(Some)
    }

    /// The folder of checkpoints.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// What is being written is written to the end.
impl Drop for Checkpointer {
    fn drop(&mut self) {
        // Whoever wants to know calls `finish`.
        let _ = self.finish();
    }
}

impl std::fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpointer")
            .field("folder", &self.folder)
            .field("keep", &self.keep)
            .field("writing", &self.writing.is_some())
            .finish_non_exhaustive()
    }
}

/// Makes the folder, and has its name on the disk.
fn make(folder: &Path) -> Result<(), CheckpointError> {
    let failed = |error| CheckpointError::write("create", folder, error);
    fs::create_dir_all(folder).map_err(failed)?;
    match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => {
            let synced = File::open(parent).and_then(|parent| parent.sync_all());
            synced.map_err(failed)
        }
        _ => Ok(()),
    }
}

fn lock(folder: &Path) -> Result<File, CheckpointError> {
    let path = folder.join(".lock");
    let opened = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let file = opened.map_err(|error| CheckpointError::write("create", &path, error))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(CheckpointError::InUse {
            folder: folder.to_owned(),
        }),
        // Not every file system can lock.
        Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
            Err(CheckpointError::write("lock", &path, error))
        }
        _ => Ok(file),
    }
}
