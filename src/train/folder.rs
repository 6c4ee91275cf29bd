//! Run folders: names of files, detection of runs, and atomic writing. No other module knows the
//! format.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{NoRun, TrainError};
use super::leader::made_by_leader;
use crate::checkpoint::{Checkpoint, CheckpointError, Checkpointer};
use crate::metrics::{METRICS_FILE, MetricsError, StepMetrics, is_event_file, read};
use crate::{BEST, CHECKPOINTS, CONFIG_FILE, TRACE_FILE};
use gpipe_partitioner::files;
use gpipe_torch::Pipeline;
use gpipe_torch::world::World;

/// Default folder of runs.
const RUNS: &str = "runs";
/// Checkpoint part with the position in the data.
pub(super) const DATA_PART: &str = "data";
/// Checkpoint part with the state of evaluations.
pub(super) const EVALUATION_PART: &str = "evaluation";
/// Checkpoint part with the state of loss scaling.
pub(super) const LOSS_SCALE_PART: &str = "loss_scale";

/// A folder owned by one run: `config.toml`, `metrics.jsonl` with TensorBoard's event file beside it,
/// `checkpoints`, and `trace.json` of the last step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Opens the folder of an existing run.
    ///
    /// # Errors
    /// [`TrainError::NoRun`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, TrainError> {
        let run = Self::at(path);
        let none = |why| {
            let folder = run.path.clone();
            Err(TrainError::NoRun { folder, why })
        };
        if !run.path.exists() {
            return none(NoRun::Missing);
        }
        if !run.path.is_dir() {
            return none(NoRun::File);
        }
        if !run.config_path().exists() && !run.checkpoints().exists() {
            return none(NoRun::Foreign);
        }
        Ok(run)
    }

    pub(super) fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the configuration.
    pub fn config_path(&self) -> PathBuf {
        self.path.join(CONFIG_FILE)
    }

    /// Returns the path of the checkpoints' folder.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }

    /// Returns the path of the file with a line per step.
    pub fn metrics_path(&self) -> PathBuf {
        self.path.join(METRICS_FILE)
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// The file is missing, or is not text.
    pub fn config(&self) -> io::Result<String> {
        files::read_text(&self.config_path())
    }

    /// Reads the metrics of all steps.
    ///
    /// # Errors
    /// As [`read`].
    pub fn records(&self) -> Result<Vec<StepMetrics>, MetricsError> {
        read(&self.metrics_path())
    }

    /// Opens the newest checkpoint; `None` before the first.
    ///
    /// # Errors
    /// As [`Checkpoint::newest`].
    pub fn newest_checkpoint(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        found(Checkpoint::newest(self.checkpoints()))
    }

    /// Opens the checkpoint of the lowest held-out loss; `None` if the run was not evaluated during
    /// training, or has not been saved since.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn best_checkpoint(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        let best = self.path.join(BEST);
        if best.symlink_metadata().is_err() {
            return Ok(None);
        }
        Checkpoint::open(best).map(Some)
    }

    /// Makes [`BEST`] a link to the checkpoint of this step, if it exists; else removes the link.
    pub(super) fn link_best(&self, step: Option<u64>) -> Result<(), TrainError> {
        let (link, new) = (self.path.join(BEST), self.path.join("best.new"));
        let failed = |error| TrainError::write(&link)(error);
        for old in [&new].into_iter().chain(step.is_none().then_some(&link)) {
            match fs::remove_file(old) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        let all = Checkpoint::list(self.checkpoints())?;
        let named = all.iter().find(|one| Some(one.step) == step);
        let Some(name) = named.and_then(|one| one.path.file_name()) else {
            return Ok(());
        };
        let linked = symlink(Path::new(CHECKPOINTS).join(name), &new);
        linked
            .and_then(|()| fs::rename(&new, &link))
            .map_err(failed)
    }

    /// Copies the checkpoint of a step from another run, if it exists; it appears once it is complete.
    pub(super) fn copy_checkpoint(&self, from: &Self, step: u64) -> Result<(), TrainError> {
        let all = Checkpoint::list(from.checkpoints())?;
        let Some(there) = all.iter().find(|one| one.step == step) else {
            return Ok(());
        };
        let name = there.path.file_name().unwrap_or_default();
        let here = self.checkpoints().join(name);
        // Named like a checkpoint being written, so that leftovers of a killed process are removed.
        let half = format!(".writing-{}", name.to_string_lossy());
        let half = self.checkpoints().join(half);
        fs::create_dir_all(&half).map_err(TrainError::write(&half))?;
        let cannot_read = |error| TrainError::read(&there.path)(error);
        for entry in fs::read_dir(&there.path).map_err(cannot_read)? {
            let path = entry.map_err(cannot_read)?.path();
            let copy = half.join(path.file_name().unwrap_or_default());
            fs::copy(&path, &copy).map_err(TrainError::write(&copy))?;
        }
        fs::rename(&half, &here).map_err(TrainError::write(&here))
    }

    /// Returns a writer of checkpoints, which keeps other processes from saving there.
    pub(super) fn lock(&self, world: Option<&Arc<World>>) -> Result<Checkpointer, TrainError> {
        Ok(match world {
            Some(world) => Checkpointer::in_world(self.checkpoints(), world)?,
            None => Checkpointer::new(self.checkpoints())?,
        })
    }

    /// Creates and locks the folder of a new run: the requested one, which must not hold another run,
    /// or the next free one. Nothing else is written there until other processes are known to be shut
    /// out. Of the processes of `pipe`, rank 0 creates it; it must be the same for all.
    pub(super) fn claim(
        path: Option<&Path>,
        pipe: &Pipeline,
    ) -> Result<(Self, Checkpointer), TrainError> {
        let what = "the making of a run's folder";
        let run = Self::at(made_by_leader(pipe, what, || Self::make(path))?);
        let other = path.filter(|own| *own != run.path());
        let other = other.map(|own| {
            let (own, leads) = (own.display(), run.path().display());
            let rank = pipe.world().map_or(0, |world| world.rank());
            format!(
                "the run of rank {rank} is to be in `{own}`, and that of rank 0 in `{leads}`: give all \
                 processes the same folder"
            )
        });
        // The command lines differ, in whichever process that shows.
        let all: Vec<Option<String>> = pipe.share(other)?;
        if let Some(why) = all.into_iter().flatten().next() {
            return Err(TrainError::Settings(why));
        }
        let writer = run.lock(pipe.world())?;
        if let Some(path) = path {
            // Another run may have begun and ended there meanwhile.
            made_by_leader(pipe, what, || Self::check_free(path))?;
        }
        Ok((run, writer))
    }

    fn make(path: Option<&Path>) -> Result<PathBuf, TrainError> {
        let Some(path) = path else {
            return next_free(Path::new(RUNS));
        };
        Self::check_free(path)?;
        fs::create_dir_all(path).map_err(|error| TrainError::NewFolder {
            folder: path.to_owned(),
            why: error.to_string(),
        })?;
        Ok(path.to_owned())
    }

    /// Checks that a folder is free for a new run. A run may have been stopped before it was complete:
    /// then there are neither a configuration nor checkpoints, and files copied by a fork are beside
    /// the empty folder of checkpoints that it locked first.
    ///
    /// # Errors
    /// [`TrainError::NewFolder`], [`TrainError::Occupied`].
    pub fn check_free(path: impl AsRef<Path>) -> Result<(), TrainError> {
        let run = Self::at(path.as_ref());
        let folder = run.path.clone();
        if folder.is_file() {
            let why = "this is a file, not a folder".to_owned();
            return Err(TrainError::NewFolder { folder, why });
        }
        let is_there = |path: PathBuf| path.symlink_metadata().is_ok();
        let saved = Checkpoint::list(run.checkpoints()).map_or(true, |all| !all.is_empty());
        // There is no folder, or only a dangling link, which must not be written through.
        let none = !run.checkpoints().exists();
        let strays = is_there(run.metrics_path()) || is_there(run.checkpoints());
        if is_there(run.config_path()) || saved || (none && strays) {
            return Err(TrainError::Occupied { folder });
        }
        Ok(())
    }

    /// Checks early that a new run can have this folder, or the next free one, so that nobody waits for
    /// a run that then fails.
    ///
    /// # Errors
    /// As [`check_free`](Self::check_free), or the folder cannot be created.
    pub fn check_new(path: Option<&Path>) -> Result<(), TrainError> {
        let folder = path.unwrap_or(Path::new(RUNS)).to_owned();
        if !folder.is_file() {
            files::check_can_make(&folder).map_err(|error| TrainError::NewFolder {
                why: format!("nothing can be written there: {error}"),
                folder,
            })?;
        }
        path.map_or(Ok(()), Self::check_free)
    }

    pub(super) fn write_config(&self, config: &str) -> Result<(), TrainError> {
        write_whole(&self.config_path(), config.as_bytes())
    }

    /// Writes the timeline of a step, in Chrome's trace format.
    pub(super) fn write_trace(&self, trace: &str) -> Result<(), TrainError> {
        write_whole(&self.path.join(TRACE_FILE), trace.as_bytes())
    }

    /// Copies the metrics of another run.
    pub(super) fn copy_metrics(&self, from: &Self) -> Result<(), TrainError> {
        let cannot_read = |error| TrainError::read(&from.path)(error);
        for entry in fs::read_dir(&from.path).map_err(cannot_read)? {
            let path = entry.map_err(cannot_read)?.path();
            let Some(name) = path.file_name() else {
                continue;
            };
            if name == METRICS_FILE || is_event_file(&path) {
                let copy = self.path.join(name);
                fs::copy(&path, &copy).map_err(TrainError::write(&copy))?;
            }
        }
        Ok(())
    }
}

/// Returns `None` if there is no checkpoint.
pub(super) fn found<T>(result: Result<T, CheckpointError>) -> Result<Option<T>, CheckpointError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(CheckpointError::None { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates `root/1`, or the next free number.
fn next_free(root: &Path) -> Result<PathBuf, TrainError> {
    fs::create_dir_all(root).map_err(TrainError::write(root))?;
    for number in 1_u32.. {
        let path = root.join(number.to_string());
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(TrainError::write(&path)(error)),
        }
    }
    Err(TrainError::NewFolder {
        folder: root.to_owned(),
        why: "it is full: choose another folder".to_owned(),
    })
}

/// Writes a file named by the user, overwriting any other.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    fs::write(path, bytes).map_err(TrainError::write(path))
}

/// Writes a file atomically: on failure the old one stays. Links in the folder are replaced, not
/// followed.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    if files::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let new = path.with_extension("new");
    let removed = match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    let created = removed.and_then(|()| fs::File::create_new(&new));
    let written = created.and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let written = written.and_then(|()| fs::rename(&new, path));
    written.map_err(|error| {
        // Its space may be what is missing.
        let _ = fs::remove_file(&new);
        TrainError::write(path)(error)
    })
}
