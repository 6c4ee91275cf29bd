//! A run that is resumed: where it is, what it resumes from, and whether one may believe it.

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

/// How a run is resumed.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ResumeOptions {
    /// Another folder than the run's own, made new: the run itself stays as it is.
    pub fork: Option<PathBuf>,
    /// Takes the newest checkpoint that is intact where newer ones are damaged.
    pub fallback: bool,
    /// The processes that resume it together, which all do this; none where one does.
    pub world: Option<Arc<World>>,
}

impl ResumeOptions {
    /// In another folder, where there is one.
    #[must_use]
    pub fn fork(mut self, folder: Option<PathBuf>) -> Self {
        self.fork = folder;
        self
    }

    /// The processes that resume it together, where there are several.
    #[must_use]
    pub fn world(mut self, world: Option<&Arc<World>>) -> Self {
        self.world = world.map(Arc::clone);
        self
    }

    /// Whether an older checkpoint will do.
    #[must_use]
    pub fn fallback(mut self, fallback: bool) -> Self {
        self.fallback = fallback;
        self
    }
}

/// A run that is to be resumed; from when this is opened no other process can train in the
/// folder.
#[derive(Debug)]
pub struct Resume {
    run: RunFolder,
    /// Nothing if it was stopped before its first checkpoint.
    from: Option<Checkpoint>,
    config: (PathBuf, String),
    /// Another folder than the run's own.
    forked: Option<PathBuf>,
    /// In the run's own folder.
    writer: Option<Checkpointer>,
    /// Steps that it has done without a checkpoint; nothing without metrics either.
    unsaved: Option<u64>,
}

impl Resume {
    /// Finds the newest checkpoint and verifies it; `warn` is told of those that are damaged,
    /// where an older one will do.
    ///
    /// # Errors
    /// There is no run, or another process trains it, or its newest checkpoint is no
    /// good: which file, why, and what to do.
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
        // Before anything is read: whoever trains there may remove it meanwhile.
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

    /// Without a checkpoint a run begins anew, unless it seems to have lost some: the metrics
    /// of a long run are not to be cut off. It was saved after `every` so many steps.
    ///
    /// # Errors
    /// [`TrainError::CheckpointsLost`].
    pub fn check_unsaved(&self, every: Option<u64>) -> Result<(), TrainError> {
        let Some(done) = self.unsaved else {
            return Ok(());
        };
        // The second one waits until the first is written.
        if every.is_some_and(|every| done < 2 * every) {
            return Ok(());
        }
        Err(TrainError::CheckpointsLost {
            folder: self.run.path().to_owned(),
            done,
        })
    }

    /// The run.
    pub fn run(&self) -> &RunFolder {
        &self.run
    }

    /// The folder in which it is resumed.
    pub fn folder(&self) -> &Path {
        self.forked.as_deref().unwrap_or(self.run.path())
    }

    /// What it resumes from; nothing if it was stopped before its first checkpoint.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.from.as_ref()
    }

    /// Steps that have been done.
    pub fn step(&self) -> u64 {
        self.from.as_ref().map_or(0, |from| from.extras().step)
    }

    /// Its configuration, and the file that has it: where that of the run is lost, the
    /// checkpoint's.
    pub fn config(&self) -> (&Path, &str) {
        (&self.config.0, &self.config.1)
    }

    /// Steps that are in the metrics and are trained once more.
    pub fn repeated(&self) -> u64 {
        self.unsaved.unwrap_or_default()
    }

    /// Where it goes on, in words.
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

    /// Where it stood in the data.
    ///
    /// # Errors
    /// The checkpoint does not say: the data would silently begin anew.
    pub(super) fn data(&self) -> Result<Option<&Value>, TrainError> {
        let Some(from) = &self.from else {
            return Ok(None);
        };
        let saved = from.extras().get(DATA_PART);
        saved.map(Some).ok_or_else(|| lacks(from, DATA_PART))
    }

    /// How it stood with its evaluations.
    ///
    /// # Errors
    /// The checkpoint has that, but not as a run writes it.
    pub(super) fn standing(&self) -> Result<Standing, TrainError> {
        let Some(from) = &self.from else {
            return Ok(Standing::default());
        };
        let saved = from.extras().get(EVALUATION_PART);
        let read = saved.map(Standing::deserialize).transpose();
        read.map(Option::unwrap_or_default)
            .map_err(|_| lacks(from, EVALUATION_PART))
    }

    /// Has pipeline and optimizer go on from the checkpoint.
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
            // In another precision there is none.
            Some(scale) if pipe.loss_scale().is_some() => Ok(pipe.restore_loss_scale(scale)?),
            _ => Ok(()),
        }
    }

    /// The run folder, cut off after the checkpoint's step, and what saves into it; `save`
    /// makes the first checkpoint of a folder of its own.
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

/// The error about a part of a checkpoint that a run has not written.
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

/// The newest checkpoint, or the newest that training can resume from where that is agreed
/// to.
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

/// The run's configuration; where it is lost, that in the checkpoint.
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
