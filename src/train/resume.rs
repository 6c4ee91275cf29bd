//! Opening and validating a run to resume.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use serde::Deserialize as _;
use serde_json::Value;

use super::checkpoints::{Checkpoints, Saving};
use super::error::{TrainError, once_more};
use super::evaluation::Standing;
use super::folder::{DATA_PART, EVALUATION_PART, LOSS_SCALE_PART, RunFolder, found};
use super::hook::Hooks;
use super::leader::leads;
use super::writer::RunWriter;
use crate::checkpoint::{Checkpoint, CheckpointError, Checkpointer, Needs};
use gpipe_torch::world::World;
use gpipe_torch::{Optimizer, Pipeline};

/// Options of resuming a run.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ResumeOptions {
    /// Another, new folder to continue in: the run's own folder stays unchanged.
    pub fork: Option<PathBuf>,
    /// Accepts the newest intact checkpoint if newer ones are damaged.
    pub fallback: bool,
    /// The processes that resume it together, all of which do this; `None` for a single process.
    pub world: Option<Arc<World>>,
}

impl ResumeOptions {
    /// Sets another folder to continue in, if any.
    #[must_use]
    pub fn fork(mut self, folder: Option<PathBuf>) -> Self {
        self.fork = folder;
        self
    }

    /// Sets the processes that resume it together, if several.
    #[must_use]
    pub fn world(mut self, world: Option<&Arc<World>>) -> Self {
        self.world = world.map(Arc::clone);
        self
    }

    /// Sets whether an older checkpoint is acceptable.
    #[must_use]
    pub fn fallback(mut self, fallback: bool) -> Self {
        self.fallback = fallback;
        self
    }
}

/// A run to resume; while this exists, no other process can train in the folder.
#[derive(Debug)]
pub struct Resume {
    run: RunFolder,
    /// `None` if it was stopped before its first checkpoint.
    from: Option<Checkpoint>,
    config: (PathBuf, String),
    /// Another folder than the run's own.
    forked: Option<PathBuf>,
    /// Writer in the run's own folder.
    writer: Option<Checkpointer>,
    /// Steps done without a checkpoint; `None` without metrics.
    unsaved: Option<u64>,
}

impl Resume {
    /// Finds the newest checkpoint and verifies it; calls `warn` for damaged ones, if an older one is
    /// acceptable.
    ///
    /// # Errors
    /// There is no run, another process is training it, or its newest checkpoint is invalid. The error
    /// names the file, the reason and a remedy.
    pub fn open(
        run: impl Into<PathBuf>,
        options: &ResumeOptions,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let run = RunFolder::open(run)?;
        let another = |fork: &&PathBuf| !same_folder(fork, run.path());
        let forked = options.fork.as_ref().filter(another);
        let world = options.world.as_ref();
        if let Some(folder) = forked.filter(|_| world.is_none_or(|world| world.rank() == 0)) {
            RunFolder::check_new(Some(folder))?;
        }
        // Before anything is read, as a training process may remove checkpoints meanwhile.
        let writer = match forked {
            None => Some(run.lock(world)?),
            Some(_) => None,
        };
        let from = newest(&run, options, warn)?;
        let config = config(&run, from.as_ref())?;
        let unsaved = match &from {
            None if run.metrics_path().exists() => {
                Some(run.records()?.last().map_or(0, |last| last.step))
            }
            _ => None,
        };
        Ok(Self {
            forked: forked.cloned(),
            run,
            from,
            config,
            writer,
            unsaved,
        })
    }

    /// Checks that a run without a checkpoint has not lost one; it restarts, and the metrics of a long
    /// run must not be cut off. It was saved every `every` steps.
    ///
    /// # Errors
    /// [`TrainError::CheckpointsLost`].
    pub fn check_unsaved(&self, every: Option<u64>) -> Result<(), TrainError> {
        let Some(done) = self.unsaved else {
            return Ok(());
        };
        // The second checkpoint is started after the first is written.
        if every.is_some_and(|every| done < 2 * every) {
            return Ok(());
        }
        Err(TrainError::CheckpointsLost {
            folder: self.run.path().to_owned(),
            done,
        })
    }

    /// Returns the run's folder.
    pub fn run(&self) -> &RunFolder {
        &self.run
    }

    /// Returns the folder in which it continues.
    pub fn folder(&self) -> &Path {
        self.forked.as_deref().unwrap_or(self.run.path())
    }

    /// Returns the checkpoint to resume from; `None` if the run was stopped before its first.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.from.as_ref()
    }

    /// Returns the number of completed steps.
    pub fn step(&self) -> u64 {
        self.from.as_ref().map_or(0, |from| from.extras().step)
    }

    /// Returns the configuration and the file that holds it: if the run's is lost, the checkpoint's.
    pub fn config(&self) -> (&Path, &str) {
        (&self.config.0, &self.config.1)
    }

    /// Returns the number of steps in the metrics that will be repeated.
    pub fn repeated(&self) -> u64 {
        self.unsaved.unwrap_or_default()
    }

    /// Describes where the run continues.
    pub fn note(&self) -> String {
        if let Some(from) = &self.from {
            let (step, path) = (from.extras().step, from.path().display());
            return format!("goes on after step {step} from {path}");
        }
        let repeated = match self.repeated() {
            0 => String::new(),
            steps => once_more(steps),
        };
        format!(
            "{} was stopped before its first checkpoint: it begins at step 1{repeated}",
            self.run.path().display()
        )
    }

    /// Returns the position in the data.
    ///
    /// # Errors
    /// The checkpoint has none: the data would silently restart.
    pub(super) fn data(&self) -> Result<Option<&Value>, TrainError> {
        let Some(from) = &self.from else {
            return Ok(None);
        };
        let saved = from.extras().get(DATA_PART);
        saved.map(Some).ok_or_else(|| lacks(from, DATA_PART))
    }

    /// Returns the state of evaluations.
    ///
    /// # Errors
    /// The state in the checkpoint is invalid.
    pub(super) fn standing(&self) -> Result<Standing, TrainError> {
        let Some(from) = &self.from else {
            return Ok(Standing::default());
        };
        let saved = from.extras().get(EVALUATION_PART);
        let read = saved.map(Standing::deserialize).transpose();
        read.map(Option::unwrap_or_default)
            .map_err(|_| lacks(from, EVALUATION_PART))
    }

    /// Restores pipeline and optimizer from the checkpoint.
    pub(super) fn restore(
        &self,
        pipe: &mut Pipeline,
        optimizer: &mut Optimizer,
    ) -> Result<(), TrainError> {
        let Some(from) = &self.from else {
            return Ok(());
        };
        from.restore(pipe, optimizer)?;
        match from.extras().get(LOSS_SCALE_PART) {
            // Other precisions have no loss scale.
            Some(scale) if pipe.loss_scale().is_some() => Ok(pipe.restore_loss_scale(scale)?),
            _ => Ok(()),
        }
    }

    /// Returns the run folder, cut off after the checkpoint's step, and the writer of checkpoints;
    /// `save` makes the first checkpoint of a fork.
    pub(super) fn begin(
        self,
        saving: Saving,
        pipe: &mut Pipeline,
        hooks: &mut Hooks<'_>,
        save: impl FnOnce(&mut Checkpoints, &mut Pipeline, &mut Hooks<'_>) -> Result<(), TrainError>,
    ) -> Result<(RunWriter, Checkpoints), TrainError> {
        let step = self.step();
        let best = self.standing()?.best().map(|best| best.step);
        let config = saving.config.clone();
        let here = leads(pipe);
        if let Some(writer) = self.writer {
            let whole = self.from.is_some().then_some(step);
            let folder = if here {
                RunWriter::resume(self.run, &config, step)?
            } else {
                RunWriter::elsewhere(self.run)
            };
            let mut checkpoints = Checkpoints::new(writer, saving, whole, here);
            checkpoints.best_is(best, hooks);
            return Ok((folder, checkpoints));
        }
        let (folder, writer) = RunFolder::claim(self.forked.as_deref(), pipe)?;
        let mut checkpoints = Checkpoints::new(writer, saving, None, here);
        let save = || save(&mut checkpoints, pipe, hooks);
        let folder = if here {
            let writer = RunWriter::fork(folder, &self.run, &config, step, save)?;
            if let Some(best) = best.filter(|best| *best != step) {
                writer.folder.copy_checkpoint(&self.run, best)?;
            }
            writer
        } else {
            save()?;
            RunWriter::elsewhere(folder)
        };
        checkpoints.best_is(best, hooks);
        Ok((folder, checkpoints))
    }
}

/// The error about a missing or invalid part of a checkpoint.
pub fn lacks(checkpoint: &Checkpoint, part: &str) -> TrainError {
    TrainError::Part {
        manifest: checkpoint.path().join("manifest.json"),
        part: part.to_owned(),
    }
}

fn same_folder(one: &Path, other: &Path) -> bool {
    match (fs::canonicalize(one), fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Returns the newest checkpoint, or the newest that training can resume from if an older one is
/// acceptable.
fn newest(
    run: &RunFolder,
    options: &ResumeOptions,
    warn: &mut dyn FnMut(&str),
) -> Result<Option<Checkpoint>, TrainError> {
    let good = &Checkpoint::check_finite;
    let folder = run.checkpoints();
    let search = |newest| match &options.world {
        Some(world) => Checkpoint::search_in_world(&folder, world, Needs::Share, newest, good),
        None if newest => {
            let newest = Checkpoint::newest(&folder);
            newest.and_then(|newest| good(&newest).map(|()| (newest, Vec::new())))
        }
        None => Checkpoint::newest_that(&folder, good),
    };
    let intact = || search(false);
    if options.fallback {
        let newest = found(intact())?.map(|(newest, damaged)| {
            damaged.iter().for_each(|error| warn(&error.to_string()));
            newest
        });
        return Ok(newest);
    }
    let newest = search(true).map(|(newest, _)| newest);
    found(newest).map_err(|error: CheckpointError| match error {
        error if error.is_damage() => TrainError::Damaged {
            error: Box::new(error),
            intact: intact().ok().map(|(older, _)| older.path().to_owned()),
        },
        error => error.into(),
    })
}

/// Reads the run's configuration; if it is lost, the checkpoint's.
fn config(run: &RunFolder, from: Option<&Checkpoint>) -> Result<(PathBuf, String), TrainError> {
    let saved = from.map(|from| {
        let text = from.extras().config.clone();
        (from.path().join("manifest.json"), text)
    });
    let folder = run.path().to_owned();
    match (run.config(), saved) {
        (Ok(text), _) => Ok((run.config_path(), text)),
        (Err(_), Some(saved)) if !saved.1.is_empty() => Ok(saved),
        (Err(error), None) if error.kind() == io::ErrorKind::NotFound => {
            Err(TrainError::NothingToResume { folder })
        }
        (Err(source), _) => Err(TrainError::Config { folder, source }),
    }
}
