//! Writes checkpoints while training goes on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use super::disk::{Disk, RealDisk};
use super::error::CheckpointError;
use super::extras::Extras;
use super::folder;
use super::lock::{Lock, Locked};
use super::shard;
use super::write::{self, Copied, Saved};
use crate::engine::panics::panic_message;
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
    non_finite: bool,
    disk: Arc<dyn Disk>,
    /// No other process writes there.
    lock: Arc<Lock>,
    writing: Option<Writing>,
}

/// A checkpoint that is being written.
struct Writing {
    thread: JoinHandle<Result<Option<Saved>, CheckpointError>>,
    /// Of one that is held back: whether it is to be published. Dropped, it is.
    approval: Option<Sender<bool>>,
}

impl Checkpointer {
    /// For checkpoints in `folder`, which is made if it does not exist. What
    /// processes left there that were killed while they wrote is cleaned up.
    /// The three newest checkpoints are kept; see [`Checkpointer::keep`].
    ///
    /// # Errors
    /// The folder cannot be made or written to, or another process writes there.
    pub fn new(folder: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let folder = folder.into();
        make(&folder)?;
        let lock = Arc::new(Lock::take(&folder)?);
        let disk = Arc::new(Locked {
            disk: RealDisk,
            lock: Arc::clone(&lock),
        });
        folder::recover(&*disk, &folder)?;
        Ok(Self {
            folder,
            keep: 3,
            non_finite: false,
            disk,
            lock,
            writing: None,
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

    /// Saves parameters too that are NaN or infinite, and what an optimizer remembers of
    /// them: for models in which such numbers have a meaning, or to look into what went
    /// wrong. Without this they are an error, and the checkpoints from before stay.
    #[must_use]
    pub fn allow_non_finite(mut self) -> Self {
        self.non_finite = true;
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
    /// the next call saves again. The folder is [lost](CheckpointError::Lost). A stage's
    /// thread is gone.
    pub fn save(
        &mut self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        extras: Extras,
    ) -> Result<(), CheckpointError> {
        self.begin(pipe, optimizer, extras, None)
    }

    /// The same, held back: what was saved is written, but older checkpoints stay the
    /// newest until [`Checkpointer::approve`] or [`Checkpointer::finish`]; with
    /// [`Checkpointer::discard`] they do for good.
    pub(crate) fn save_held(
        &mut self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        extras: Extras,
    ) -> Result<(), CheckpointError> {
        let (approval, approved) = mpsc::channel();
        self.begin(pipe, optimizer, extras, Some(approved))?;
        if let Some(writing) = &mut self.writing {
            writing.approval = Some(approval);
        }
        Ok(())
    }

    fn begin(
        &mut self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        extras: Extras,
        approved: Option<Receiver<bool>>,
    ) -> Result<(), CheckpointError> {
        self.finish()?;
        self.lock.check()?;
        let stages = pipe.snapshot(optimizer)?;
        stages.iter().try_for_each(|stage| shard::check(stage))?;
        let copied = Copied {
            extras,
            draws: pipe.draws(),
            stages,
            non_finite: self.non_finite,
        };
        // Without anybody left to say no it is a yes.
        let approved = move || approved.is_none_or(|approved| approved.recv().unwrap_or(true));
        let (disk, folder, keep) = (Arc::clone(&self.disk), self.folder.clone(), self.keep);
        let writer = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || write::write(&*disk, &folder, keep, copied, approved));
        let failed = |error| CheckpointError::write("write", &self.folder, error);
        self.writing = Some(Writing {
            thread: writer.map_err(failed)?,
            approval: None,
        });
        Ok(())
    }

    /// Has the checkpoint that is held back, if there is one, take its place.
    pub(crate) fn approve(&mut self) {
        if let Some(writing) = &mut self.writing {
            writing.approval = None;
        }
    }

    /// Drops the checkpoint that is held back, if there is one, and waits until it is gone.
    ///
    /// # Errors
    /// It could not be written, or one that was not held back could not.
    pub(crate) fn discard(&mut self) -> Result<Option<Saved>, CheckpointError> {
        if let Some(approval) = self.writing.as_mut().and_then(|own| own.approval.take()) {
            // A writer that is gone publishes nothing either.
            let _ = approval.send(false);
        }
        self.finish()
    }

    /// What has become of the last [`Checkpointer::save`], if that is known by now;
    /// does not wait. Tells it once.
    ///
    /// # Errors
    /// The checkpoint could not be written. The folder is [lost](CheckpointError::Lost),
    /// also where nothing is being written.
    pub fn check(&mut self) -> Result<Option<Saved>, CheckpointError> {
        let is_finished = |writing: &Writing| writing.thread.is_finished();
        if self.writing.as_ref().is_some_and(is_finished) {
            return self.finish();
        }
        self.lock.check()?;
        Ok(None)
    }

    /// Waits until the last checkpoint is written. Tells it once.
    ///
    /// # Errors
    /// The checkpoint could not be written; [`CheckpointError::NotFinite`]: it would be of
    /// weights that nothing can be trained from.
    pub fn finish(&mut self) -> Result<Option<Saved>, CheckpointError> {
        self.approve();
        let Some(writing) = self.writing.take() else {
            return Ok(None);
        };
        let written = writing.thread.join().unwrap_or_else(|panic| {
            Err(CheckpointError::Broken {
                folder: self.folder.clone(),
                why: panic_message(&*panic),
            })
        });
        // Whatever the disk said then, this is why.
        written.or_else(|error| self.lock.check().and(Err(error)))
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
