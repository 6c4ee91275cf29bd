//! A run that goes on: where it is, what it goes on from, and whether one may believe it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

use super::Failure;
use super::checkpoints::{self, Checkpoints};
use super::config::Saved;
use super::config_diff;
use super::job::Job;
use super::options::Args;
use super::run_folder::{CONFIG, RunFolder, check_free};
use crate::checkpoint::{Checkpoint, CheckpointError, Checkpointer};
use crate::cli::say;
use crate::cli::trained::{failed_checkpoint, saved_vocabulary, unfit};
use crate::files;
use crate::metrics::{METRICS_FILE, read};
use crate::models::zoo::Zoo;
use crate::{Optimizer, Pipeline};

/// A run that is taken up again.
#[derive(Debug)]
pub(super) struct TakenUp {
    run: PathBuf,
    /// What it goes on from; nothing if it was stopped before its first checkpoint.
    from: Option<Checkpoint>,
    config: Saved,
    /// What was said to be in another folder than the run's own.
    out: Option<PathBuf>,
    /// In the run's own folder: no other process may go on with it.
    writer: Option<Checkpointer>,
    /// Steps that it has done without a checkpoint.
    unsaved: u64,
}

impl TakenUp {
    /// Finds the newest checkpoint and verifies it.
    ///
    /// # Errors
    /// There is no run, or another process trains it, or its newest checkpoint is no
    /// good: which file, why, and what to do.
    pub(super) fn open(run: &Path, args: &Args) -> Result<Self, Failure> {
        check_folder(run).map_err(|why| wrong(run, &why))?;
        let out = args.out.clone().filter(|out| !same_folder(out, run));
        if let Some(out) = &out {
            check_free(out)?;
        }
        // Before anything is read: whoever trains there may remove it meanwhile.
        let writer = match &out {
            None => Some(Checkpoints::open(run)?),
            Some(_) => None,
        };
        let from = newest(run, args.resume_fallback)?;
        let config = config(run, from.as_ref())?;
        let unsaved = match &from {
            Some(_) => 0,
            None => unsaved(run)?,
        };
        Ok(Self {
            run: run.to_owned(),
            from,
            config,
            out,
            writer,
            unsaved,
        })
    }

    /// What is trained, with the run's configuration as the lowest layer.
    pub(super) fn job(&self, args: &Args, zoo: &Zoo) -> Result<Job, Failure> {
        let args = Args {
            out: Some(self.folder().to_owned()),
            ..args.clone()
        };
        Job::over(Some(&self.config), &args, zoo)
    }

    /// The folder in which it goes on.
    fn folder(&self) -> &Path {
        self.out.as_deref().unwrap_or(&self.run)
    }

    /// Steps that have been done.
    pub(super) fn step(&self) -> u64 {
        self.from.as_ref().map_or(0, |from| from.extras().step)
    }

    /// Where it stood in the data.
    ///
    /// # Errors
    /// The checkpoint does not say: the data would silently begin anew.
    pub(super) fn data(&self) -> Result<Option<&Value>, Failure> {
        let Some(from) = &self.from else {
            return Ok(None);
        };
        let saved = from.extras().get(checkpoints::DATA);
        saved
            .map(Some)
            .ok_or_else(|| unfit(from, checkpoints::DATA))
    }

    /// That the resolved configuration goes on with what was saved; what there is to say.
    ///
    /// # Errors
    /// What was changed cannot be.
    pub(super) fn check(&self, job: &Job, resolved: &str) -> Result<Vec<String>, Failure> {
        let Some(from) = &self.from else {
            let anew = format!(
                "{} was stopped before its first checkpoint: it begins at step 1",
                self.run.display()
            );
            if self.unsaved == 0 {
                return Ok(vec![anew]);
            }
            // Also where nothing else is said.
            say(&format!(
                "warning: {anew}, and the {} steps in its {METRICS_FILE} are trained once more",
                self.unsaved
            ));
            return Ok(Vec::new());
        };
        let extras = from.extras();
        let mut notes = vec![format!(
            "goes on after step {} from {}",
            extras.step,
            from.path().display()
        )];
        notes.extend(config_diff::check(&extras.config, resolved)?);
        if let (Some(saved), Some((set, _))) = (saved_vocabulary(from)?, job.source.text())
            && !saved.chars().eq(set.vocabulary().iter().copied())
        {
            return Err(Failure::Usage(format!(
                "--resume: the text {} has other characters than the one that the run was trained on: \
                 name that one with --data",
                job.source.name()
            )));
        }
        Ok(notes)
    }

    /// Whether there is nothing left to do.
    pub(super) fn is_finished(&self, job: &Job) -> bool {
        self.step() >= job.recipe.steps as u64
    }

    /// What to say then.
    pub(super) fn nothing_left(&self, job: &Job) -> String {
        format!(
            "{}: all {} steps are done; to train on, give more with --steps N",
            self.run.display(),
            job.recipe.steps
        )
    }

    /// Has pipeline and optimizer go on from the checkpoint.
    pub(super) fn restore(
        &self,
        pipe: &mut Pipeline,
        optimizer: &mut Optimizer,
    ) -> Result<(), Failure> {
        let Some(from) = &self.from else {
            return Ok(());
        };
        from.restore(pipe, optimizer).map_err(failed_checkpoint)?;
        match from.extras().get(checkpoints::LOSS_SCALE) {
            // In another precision there is none.
            Some(scale) if pipe.loss_scale().is_some() => {
                pipe.restore_loss_scale(scale).map_err(super::failure)
            }
            _ => Ok(()),
        }
    }

    /// The run folder, cut off after the checkpoint's step, and what saves into it; `save`
    /// makes the first checkpoint of a folder of its own.
    pub(super) fn begin(
        self,
        job: &Job,
        config: &str,
        save: impl FnOnce(&mut Checkpoints) -> Result<(), Failure>,
    ) -> Result<(RunFolder, Checkpoints), Failure> {
        let step = self.step();
        if let Some(writer) = self.writer {
            let whole = self.from.is_some().then_some(step);
            let folder = RunFolder::go_on(&self.run, config, step)?;
            return Ok((folder, Checkpoints::new(writer, job, config, whole)));
        }
        let (path, writer) = RunFolder::claim(self.out.as_deref())?;
        let mut checkpoints = Checkpoints::new(writer, job, config, None);
        let save = || save(&mut checkpoints);
        let folder = RunFolder::fork(path, &self.run, config, step, save)?;
        Ok((folder, checkpoints))
    }
}

fn wrong(run: &Path, why: &str) -> Failure {
    Failure::Usage(format!("--resume {}: {why}", run.display()))
}

fn check_folder(run: &Path) -> Result<(), String> {
    if !run.exists() {
        return Err("there is no such folder; every run says its own when it begins".to_owned());
    }
    if !run.is_dir() {
        return Err("this is a file, not a run folder".to_owned());
    }
    if [CONFIG, checkpoints::FOLDER]
        .iter()
        .any(|own| run.join(own).exists())
    {
        return Ok(());
    }
    Err(format!(
        "this is no run folder: it has neither {CONFIG} nor {}, which `train` writes",
        checkpoints::FOLDER
    ))
}

fn same_folder(one: &Path, other: &Path) -> bool {
    match (fs::canonicalize(one), fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// The newest checkpoint, or the newest that training can go on from where that is agreed
/// to.
fn newest(run: &Path, fallback: bool) -> Result<Option<Checkpoint>, Failure> {
    let folder = run.join(checkpoints::FOLDER);
    if fallback {
        return match Checkpoint::newest_that(&folder, Checkpoint::check_finite) {
            Ok((found, damaged)) => {
                for error in damaged {
                    say(&format!("warning: {error}"));
                }
                Ok(Some(found))
            }
            Err(CheckpointError::None { .. }) => Ok(None),
            Err(error) => Err(failed_checkpoint(error)),
        };
    }
    let newest = Checkpoint::newest(&folder);
    match newest.and_then(|found| found.check_finite().map(|()| found)) {
        Ok(found) => Ok(Some(found)),
        Err(CheckpointError::None { .. }) => Ok(None),
        Err(error) if error.is_damage() => Err(Failure::Run(anyhow::anyhow!(
            "{error}; {}",
            instead(&folder)
        ))),
        Err(error) => Err(failed_checkpoint(error)),
    }
}

/// What can be done where the newest checkpoint is damaged.
fn instead(folder: &Path) -> String {
    match Checkpoint::newest_that(folder, Checkpoint::check_finite) {
        Ok((found, _)) => format!(
            "--resume-fallback goes on from {}, which is intact",
            found.path().display()
        ),
        Err(_) => "no older checkpoint is intact either".to_owned(),
    }
}

/// The run's configuration; where it is lost, that in the checkpoint.
fn config(run: &Path, from: Option<&Checkpoint>) -> Result<Saved, Failure> {
    let path = run.join(CONFIG);
    let saved = from.map(|from| Saved {
        path: from.path().join("manifest.json"),
        text: from.extras().config.clone(),
        trained: true,
    });
    let trained = from.is_some();
    match (files::read_text(&path), saved) {
        (Ok(text), _) => Ok(Saved {
            path,
            text,
            trained,
        }),
        (Err(_), Some(saved)) if !saved.text.is_empty() => Ok(saved),
        (Err(error), None) if error.kind() == io::ErrorKind::NotFound => {
            let why = "it was stopped before there was anything to go on with: neither a \
                       configuration nor a checkpoint; begin it again, in the same folder, with --out";
            Err(wrong(run, why))
        }
        (Err(error), _) => Err(wrong(run, &format!("{CONFIG} cannot be read: {error}"))),
    }
}

/// Without a checkpoint the run begins anew, unless it seems to have lost some: the
/// metrics of a long run are not to be cut off. The steps that it has done.
fn unsaved(run: &Path) -> Result<u64, Failure> {
    let metrics = run.join(METRICS_FILE);
    if !metrics.exists() {
        return Ok(0);
    }
    let done = read(&metrics)?.last().map_or(0, |last| last.step);
    let config = run.join(CONFIG);
    let every = files::read_text(&config).ok().and_then(|text| every(&text));
    // The second one waits until the first is written.
    if every.is_some_and(|every| done < 2 * every) {
        return Ok(done);
    }
    Err(wrong(
        run,
        &format!(
            "the run has done {done} steps, but {} has no checkpoint to go on from: put back what was \
             there, or begin anew with `train --config {}`",
            run.join(checkpoints::FOLDER).display(),
            config.display()
        ),
    ))
}

fn every(config: &str) -> Option<u64> {
    let config: toml::Table = config.parse().ok()?;
    let every = config.get("checkpoint")?.get("every")?.as_integer()?;
    u64::try_from(every).ok()
}
