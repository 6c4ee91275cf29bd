//! Writes checkpoints while training continues.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use serde_json::json;

use super::disk::RealDisk;
use super::error::CheckpointError;
use super::extras::Extras;
use super::folder;
use super::lock::{Lock, Locked};
use super::restore::LOCAL_PART;
use super::shard;
use super::together::Together;
use super::write::{self, Copied, Saved, Target};
use gpipe_engine::panics::panic_message;
use gpipe_torch::fail_point::fail_point;
use gpipe_torch::world::World;
use gpipe_torch::{Optimizer, Pipeline};

/// Writer of a run's checkpoints in a folder.
///
/// [`Checkpointer::save`] copies everything on the stages' own threads, which is all that training
/// waits for; the copies are written in the background. At every moment, whatever happens to the
/// process, the machine or the disk, the last complete checkpoint can be loaded.
///
/// ```
/// use gpipe::checkpoint::{Checkpoint, Checkpointer, Extras};
/// # use gpipe::{Optimizer, Pipeline, Sequential, tch::{Device, Kind, Tensor, nn}, optim::AdamW};
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
    to: Target,
    non_finite: bool,
    /// Prevents other runs from writing there.
    lock: Arc<Lock>,
    writing: Option<Writing>,
}

type Written = Result<Option<Saved>, CheckpointError>;

/// A checkpoint being written.
struct Writing {
    work: Work,
    /// For a held-back checkpoint: whether to publish it. Dropping the sender publishes it.
    approval: Option<Sender<bool>>,
    /// Closed when this process's part is written.
    part: Receiver<()>,
}

enum Work {
    UnderWay(JoinHandle<Written>),
    Over(Written),
}

impl Checkpointer {
    /// Makes a writer of checkpoints in `folder`, which is created if missing. Leftovers of killed
    /// processes are removed. The three newest checkpoints are kept; see [`Checkpointer::keep`].
    ///
    /// # Errors
    /// The folder cannot be created or written to, or another process is writing there.
    pub fn new(folder: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        Self::open(folder.into(), Together::alone())
    }

    /// Makes a writer of checkpoints that all processes of a world write together, each for its own
    /// stages. Rank 0 locks and cleans the folder, which all processes must share. In a world of one,
    /// this equals [`Checkpointer::new`].
    ///
    /// All processes must call this, and then [`save`](Checkpointer::save) and
    /// [`finish`](Checkpointer::finish), in the same order. Each call returns the same in all
    /// processes: if one cannot write, all return its error, which names it, and can continue.
    ///
    /// ```
    /// use gpipe::checkpoint::Checkpointer;
    /// use gpipe::world::World;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let world = World::from_env()?;
    /// let checkpointer = Checkpointer::in_world(folder.path(), &world)?;
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for one process; [`CheckpointError::NotShared`]; [`CheckpointError::World`].
    pub fn in_world(folder: impl Into<PathBuf>, world: &World) -> Result<Self, CheckpointError> {
        Self::open(folder.into(), Together::all(world)?)
    }

    fn open(folder: PathBuf, together: Together) -> Result<Self, CheckpointError> {
        let mut taken = None;
        let text = together.tell(|| {
            make(&folder)?;
            let lock = Lock::take(&folder)?;
            let text = if together.is_alone() {
                String::new()
            } else {
                lock.sign(&together.host(0))?
            };
            taken = Some(lock);
            Ok(text)
        })?;
        let seen = || {
            let who = format!("rank 0 on `{}`", together.host(0));
            Lock::seen(&folder, &text, &who)
        };
        let lock = taken.map_or_else(seen, Ok);
        let (lock, seen) = match lock {
            Ok(lock) => (Some(Arc::new(lock)), Ok(())),
            Err(error) => (None, Err(error)),
        };
        together.agree(seen)?;
        // If this process has no lock, it failed above.
        let Some(lock) = lock else {
            return Err(CheckpointError::None { folder });
        };
        let disk = Arc::new(Locked {
            disk: RealDisk,
            lock: Arc::clone(&lock),
        });
        together.tell(|| folder::recover(&*disk, &folder))?;
        Ok(Self {
            to: Target {
                disk,
                folder,
                keep: 3,
                spared: None,
                together,
            },
            non_finite: false,
            lock,
            writing: None,
        })
    }

    /// Keeps the `keep` newest checkpoints, at least one: an old one is removed after a new one is
    /// complete. Checkpoints of later steps than the new one's, written before the run was resumed at
    /// an earlier step, are removed too.
    #[must_use]
    pub fn keep(mut self, keep: usize) -> Self {
        self.to.keep = keep.max(1);
        self
    }

    /// Keeps the checkpoint of this step regardless of its age; any other is not spared any more. In a
    /// world, all processes must call this.
    pub fn spare(&mut self, step: impl Into<Option<u64>>) {
        self.to.spared = step.into();
    }

    /// Also saves parameters and optimizer state that are NaN or infinite: for models in which these
    /// are meaningful, or to investigate a failure. By default they are an error, and older checkpoints
    /// stay.
    #[must_use]
    pub fn allow_non_finite(mut self) -> Self {
        self.non_finite = true;
        self
    }

    /// Copies parameters, buffers, accumulated gradients, the state of `optimizer` and the random state
    /// of layers on every stage's own thread, starts writing them in the background, and returns.
    ///
    /// If the previous checkpoint is still being written, waits for it: there is at most one copy in
    /// host memory.
    ///
    /// # Errors
    /// The previous checkpoint could not be written (nothing has been copied, and the next call saves
    /// again), the folder is [lost](CheckpointError::Lost), or a stage's thread has ended.
    pub fn save(
        &mut self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        extras: Extras,
    ) -> Result<(), CheckpointError> {
        self.begin(pipe, optimizer, extras, None)
    }

    /// Like `save`, but held back: the checkpoint is written, but older ones stay the newest until
    /// [`Checkpointer::approve`] or [`Checkpointer::finish`]; after [`Checkpointer::discard`] they stay
    /// for good.
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
        let step = extras.step;
        // Otherwise a training process and a writing one could wait for each other forever.
        pipe.agree(&format!("a checkpoint of step {step}"), None)?;
        let copied = self.copy(pipe, optimizer, extras);
        self.start(step, copied, approved)
    }

    fn copy(
        &self,
        pipe: &mut Pipeline,
        optimizer: &Optimizer,
        extras: Extras,
    ) -> Result<Copied, CheckpointError> {
        fail_point("copy");
        self.lock.check()?;
        let stages = pipe.snapshot(optimizer)?;
        stages
            .iter()
            .try_for_each(|(_, stage)| shard::check(stage))?;
        let extras = match pipe.local_state() {
            Some(own) => extras.part(LOCAL_PART, json!(own)),
            None => extras,
        };
        Ok(Copied {
            extras,
            draws: pipe.draws(),
            stages,
            non_finite: self.non_finite,
        })
    }

    /// Starts writing the copy. In a world, a failed copy must reach the other processes, so that all
    /// return the error at the same call, along with later errors.
    pub(super) fn start(
        &mut self,
        step: u64,
        copied: Result<Copied, CheckpointError>,
        approved: Option<Receiver<bool>>,
    ) -> Result<(), CheckpointError> {
        let is_alone = self.to.together.is_alone();
        let copied = if is_alone { Ok(copied?) } else { copied };
        // If the sender is gone, the checkpoint is approved.
        let approved = move || approved.is_none_or(|approved| approved.recv().unwrap_or(true));
        let (written, part) = mpsc::channel();
        let to = self.to.clone();
        let writer = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || write::write(&to, step, copied, Some(written), approved));
        let work = match writer {
            Ok(thread) => Work::UnderWay(thread),
            Err(error) => {
                let error = CheckpointError::write("write", &self.to.folder, error);
                if is_alone {
                    return Err(error);
                }
                Work::Over(write::write(&self.to, step, Err(error), None, || true))
            }
        };
        self.writing = Some(Writing {
            work,
            approval: None,
            part,
        });
        Ok(())
    }

    /// Publishes the held-back checkpoint, if there is one.
    pub(crate) fn approve(&mut self) {
        if let Some(writing) = &mut self.writing {
            writing.approval = None;
        }
    }

    /// Drops the held-back checkpoint, if there is one, and waits until it is removed.
    ///
    /// # Errors
    /// It could not be written, or one that was not held back could not.
    pub(crate) fn discard(&mut self) -> Result<Option<Saved>, CheckpointError> {
        if let Some(approval) = self.writing.as_mut().and_then(|own| own.approval.take()) {
            // If the writer is gone, nothing is published either.
            let _ = approval.send(false);
        }
        self.finish()
    }

    /// Returns the result of the last [`Checkpointer::save`], if known by now, and only once; does not
    /// wait. In a world, processes may learn of success at different times; failures are returned by
    /// [`Checkpointer::finish`] and the next [`Checkpointer::save`], in the same call in all.
    ///
    /// # Errors
    /// The checkpoint could not be written, or the folder is [lost](CheckpointError::Lost), even if
    /// nothing is being written.
    pub fn check(&mut self) -> Result<Option<Saved>, CheckpointError> {
        let is_alone = self.to.together.is_alone();
        if self.is_over() {
            let written = self.take();
            if is_alone || written.is_ok() {
                return written;
            }
            self.writing = Some(Writing {
                work: Work::Over(written),
                approval: None,
                part: mpsc::channel().1,
            });
        }
        if is_alone {
            self.lock.check()?;
        }
        Ok(None)
    }

    /// Whether the last checkpoint is written, or has failed.
    pub(super) fn is_over(&self) -> bool {
        self.writing.as_ref().is_some_and(Writing::is_over)
    }

    /// Waits until the last checkpoint is written, and returns its result once.
    ///
    /// # Errors
    /// The checkpoint could not be written, or [`CheckpointError::NotFinite`]: its weights cannot be
    /// trained from.
    pub fn finish(&mut self) -> Result<Option<Saved>, CheckpointError> {
        self.approve();
        self.take()
    }

    fn take(&mut self) -> Written {
        let Some(writing) = self.writing.take() else {
            return Ok(None);
        };
        let written = match writing.work {
            Work::Over(written) => written,
            Work::UnderWay(thread) => thread.join().unwrap_or_else(|panic| {
                Err(CheckpointError::Broken {
                    folder: self.to.folder.clone(),
                    why: panic_message(&*panic),
                })
            }),
        };
        if !self.to.together.is_alone() {
            return written;
        }
        // A lost folder is the reason, whatever error the disk gave.
        written.or_else(|error| self.lock.check().and(Err(error)))
    }

    /// Returns the folder of checkpoints.
    pub fn folder(&self) -> &Path {
        &self.to.folder
    }
}

impl Writing {
    fn is_over(&self) -> bool {
        match &self.work {
            Work::UnderWay(thread) => thread.is_finished(),
            Work::Over(_) => true,
        }
    }
}

/// Finishes writing. In a world, processes other than rank 0 only wait for their own part: rank 0 may
/// be waiting for them in a step.
impl Drop for Checkpointer {
    fn drop(&mut self) {
        if self.to.together.leads() {
            // The result is available from `finish`.
            let _ = self.finish();
        } else if let Some(writing) = &self.writing {
            // Closing the channel signals the end.
            let _ = writing.part.recv();
        }
    }
}

impl std::fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpointer")
            .field("folder", &self.to.folder)
            .field("keep", &self.to.keep)
            .field("together", &self.to.together)
            .field("writing", &self.writing.is_some())
            .finish_non_exhaustive()
    }
}

/// Creates the folder and syncs its name to the disk.
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
