//! Writes checkpoints while training goes on.

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

/// Saves a run in a folder, again and again.
///
/// [`Checkpointer::save`] copies everything on the stages' own threads, which is
/// all that training waits for; the copies are written while it goes on. At every
/// moment, whatever happens to the process, the machine or the disk, the last
/// checkpoint that was whole is there to be loaded.
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
    /// No other run writes there.
    lock: Arc<Lock>,
    writing: Option<Writing>,
}

type Written = Result<Option<Saved>, CheckpointError>;

/// A checkpoint that is being written.
struct Writing {
    work: Work,
    /// Of one that is held back: whether it is to be published. Dropped, it is.
    approval: Option<Sender<bool>>,
    /// Closed once this process's own part is written.
    part: Receiver<()>,
}

enum Work {
    UnderWay(JoinHandle<Written>),
    Over(Written),
}

impl Checkpointer {
    /// For checkpoints in `folder`, which is made if it does not exist. What
    /// processes left there that were killed while they wrote is cleaned up.
    /// The three newest checkpoints are kept; see [`Checkpointer::keep`].
    ///
    /// # Errors
    /// The folder cannot be made or written to, or another process writes there.
    pub fn new(folder: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        Self::open(folder.into(), Together::alone())
    }

    /// For checkpoints that all processes of a world write together, each the stages that it
    /// has. Rank 0 locks the folder, and cleans it up; it must be one that all processes see. In
    /// a world of one it is the same as [`Checkpointer::new`].
    ///
    /// All processes must call this, and then [`save`](Checkpointer::save) and
    /// [`finish`](Checkpointer::finish), in the same order, and each of them returns the same in
    /// all: where one process cannot write, all return its error, which names it, and can go on.
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
        // Where this process has none, that was the error.
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

    /// Keeps the `keep` newest checkpoints, and at least one: an old one is removed
    /// after a new one has become whole. Checkpoints of later steps than the new
    /// one's, from before the run was taken up again at an earlier step, are removed
    /// with them.
    #[must_use]
    pub fn keep(mut self, keep: usize) -> Self {
        self.to.keep = keep.max(1);
        self
    }

    /// Has the checkpoint of this step stay beside the newest ones, however old it becomes; one
    /// that was spared before is as any other. Of several processes all must call this.
    pub fn spare(&mut self, step: impl Into<Option<u64>>) {
        self.to.spared = step.into();
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
        let step = extras.step;
        // Else who trains on and who writes would both wait for the other for ever.
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

    /// Has what was copied written. Other processes must hear of it where that failed, and all
    /// of them return it at the same place: with what else may fail now.
    pub(super) fn start(
        &mut self,
        step: u64,
        copied: Result<Copied, CheckpointError>,
        approved: Option<Receiver<bool>>,
    ) -> Result<(), CheckpointError> {
        let is_alone = self.to.together.is_alone();
        let copied = if is_alone { Ok(copied?) } else { copied };
        // Without anybody left to say no it is a yes.
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
    /// does not wait. Tells it once. Of several processes one knows earlier than another: they
    /// hear here of what is written, and of what has failed by [`Checkpointer::finish`] and the
    /// next [`Checkpointer::save`], all in the same call.
    ///
    /// # Errors
    /// The checkpoint could not be written. The folder is [lost](CheckpointError::Lost),
    /// also where nothing is being written.
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

    /// Whether the last one is written, or has failed.
    pub(super) fn is_over(&self) -> bool {
        self.writing.as_ref().is_some_and(Writing::is_over)
    }

    /// Waits until the last checkpoint is written. Tells it once.
    ///
    /// # Errors
    /// The checkpoint could not be written; [`CheckpointError::NotFinite`]: it would be of
    /// weights that nothing can be trained from.
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
        // Whatever the disk said then, this is why.
        written.or_else(|error| self.lock.check().and(Err(error)))
    }

    /// The folder of checkpoints.
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

/// What is being written is written to the end. Of several processes those that only write a part
/// wait for no more than that: rank 0 may be waiting for them in a step.
impl Drop for Checkpointer {
    fn drop(&mut self) {
        if self.to.together.leads() {
            // Whoever wants to know calls `finish`.
            let _ = self.finish();
        } else if let Some(writing) = &self.writing {
            // It says that by closing the channel.
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
