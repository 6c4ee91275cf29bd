//! The run folder: the names of its files, what makes it one, and how its files stay whole.
//! Nothing else knows its format.

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
/// The part of a checkpoint that says where the run stood in its data.
pub(super) const DATA_PART: &str = "data";
/// The part that says how the run stood with its evaluations.
pub(super) const EVALUATION_PART: &str = "evaluation";
/// The part with the state of the loss scaling.
pub(super) const LOSS_SCALE_PART: &str = "loss_scale";

/// A folder that one run owns: `config.toml`, `metrics.jsonl` with TensorBoard's event file
/// beside it, `checkpoints`, and `trace.json` of the last step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// The folder of a run that is there.
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

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its configuration's file.
    pub fn config_path(&self) -> PathBuf {
        self.path.join(CONFIG_FILE)
    }

    /// The folder of its checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }

    /// The file with a line for each step.
    pub fn metrics_path(&self) -> PathBuf {
        self.path.join(METRICS_FILE)
    }

    /// The configuration.
    ///
    /// # Errors
    /// It is not there, or is no text.
    pub fn config(&self) -> io::Result<String> {
        files::read_text(&self.config_path())
    }

    /// What each step came to.
    ///
    /// # Errors
    /// As [`read`].
    pub fn records(&self) -> Result<Vec<StepMetrics>, MetricsError> {
        read(&self.metrics_path())
    }

    /// The newest checkpoint; none before the first.
    ///
    /// # Errors
    /// As [`Checkpoint::newest`].
    pub fn newest_checkpoint(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        found(Checkpoint::newest(self.checkpoints()))
    }

    /// The checkpoint of the lowest held-out loss; none where the run was not evaluated while it
    /// trained, or has not been saved since.
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

    /// Has [`BEST`] name the checkpoint of this step, if it is there, and nothing else.
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

    /// Copies the checkpoint of a step from another run, if it has it: it is there when all of it
    /// is.
    pub(super) fn copy_checkpoint(&self, from: &Self, step: u64) -> Result<(), TrainError> {
        let all = Checkpoint::list(from.checkpoints())?;
        let Some(there) = all.iter().find(|one| one.step == step) else {
            return Ok(());
        };
        let name = there.path.file_name().unwrap_or_default();
        let here = self.checkpoints().join(name);
        // As one that is being written is called: what a killed process leaves of it is removed.
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

    /// What saves into it. No other process may do so meanwhile.
    pub(super) fn lock(&self, world: Option<&Arc<World>>) -> Result<Checkpointer, TrainError> {
        Ok(match world {
            Some(world) => Checkpointer::in_world(self.checkpoints(), world)?,
            None => Checkpointer::new(self.checkpoints())?,
        })
    }

    /// Makes the folder of a new run, and locks it: the one that was asked for, which must
    /// not hold another run, or the next free one. Nothing else is written there before
    /// another process that wants the same folder is known to be shut out. Of the processes of
    /// `pipe` rank 0 makes it, for all of which it has to be the same.
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
        // It is the command lines that differ, in whichever process that shows.
        let all: Vec<Option<String>> = pipe.share(other)?;
        if let Some(why) = all.into_iter().flatten().next() {
            return Err(TrainError::Settings(why));
        }
        let writer = run.lock(pipe.world())?;
        if let Some(path) = path {
            // Another one may have begun there, and ended, meanwhile.
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

    /// That a folder does not hold a run, so that a new one can have it. One may have been
    /// stopped before it was one: then there are neither a configuration nor checkpoints, and
    /// what else a fork has copied stands beside the empty folder of them that it locked first.
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
        // No folder, or a link that leads nowhere, which is nothing to write through.
        let none = !run.checkpoints().exists();
        let strays = is_there(run.metrics_path()) || is_there(run.checkpoints());
        if is_there(run.config_path()) || saved || (none && strays) {
            return Err(TrainError::Occupied { folder });
        }
        Ok(())
    }

    /// That a new run can have this folder, or the next free one: nobody is to wait for what ends
    /// with a folder that cannot be made.
    ///
    /// # Errors
    /// As [`check_free`](Self::check_free), or nothing can be made there.
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

/// None where there is no checkpoint.
pub(super) fn found<T>(result: Result<T, CheckpointError>) -> Result<Option<T>, CheckpointError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(CheckpointError::None { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `root/1`, or the next number that nobody has taken.
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

/// Writes a file that was asked for by name, whatever stands there.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    fs::write(path, bytes).map_err(TrainError::write(path))
}

/// The whole file or, whatever happens, the one that was there. Links that others may have
/// left in the folder are replaced, not followed.
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
        // The room that it takes may be what is missing.
        let _ = fs::remove_file(&new);
        TrainError::write(path)(error)
    })
}
