//! A launcher that starts a failed run anew gives each process the command line that it had before
//! (torchrun does, and `launch`, and SLURM with `--requeue`). The run then goes on where it was
//! saved, rather than to find that its own folder is taken.

use std::path::PathBuf;
use std::sync::Arc;

use gpipe_partitioner::words::quoted;

use super::configured::Saved;
use super::options::Args;
use crate::trained::{saved_samples, saved_tokenizer};
use crate::{Failure, failure, world};
use gpipe_torch::world::World;
use gpipe_train::{Resume, RunFolder, TrainError};

/// What an earlier start of this command has begun.
#[derive(Debug)]
pub(super) struct Begun {
    /// The run's folder.
    pub(super) folder: PathBuf,
}

impl Begun {
    /// None where this is the first start, or earlier ones have not come so far. All processes
    /// call this, and rank 0 looks.
    ///
    /// # Errors
    /// Nobody could find the run again; a process is lost.
    pub(super) fn find(args: &Args, world: Option<&Arc<World>>) -> Result<Option<Self>, Failure> {
        let starts = world::starts()?;
        let Some(folder) = &args.out else {
            // Without a fork the run that resumes is the one to go on with, each time.
            if args.resume.is_some() || (starts.before == 0 && starts.more == 0) {
                return Ok(None);
            }
            return Err(Failure::Usage(
                "a run that is started again when a process was lost goes on in its folder: name \
                 it with --out DIR"
                    .to_owned(),
            ));
        };
        if starts.before == 0 {
            return Ok(None);
        }
        let looked = world::leads(world).then(|| RunFolder::check_free(folder));
        let is_there = matches!(looked, Some(Err(TrainError::Occupied { .. })));
        let folder = folder.clone();
        Ok(world::of_leader(world, || is_there)?.then_some(Self { folder }))
    }

    /// What the command was configured with when it was first given: nothing of the run itself,
    /// which may be another one's, but what the command leaves to the machine that it comes to.
    pub(super) fn below(args: &Args, begun: &Resume) -> Result<Option<Saved>, Failure> {
        let Some(path) = &args.resume else {
            let (path, text) = begun.config();
            return Ok(Some(Saved {
                path: path.to_owned(),
                text: found_out(text),
                trained: false,
                tokenizer: None,
                samples: None,
            }));
        };
        let run = RunFolder::open(path).map_err(failure)?;
        let text = run.config().map_err(|error| {
            let path = run.config_path();
            Failure::Usage(format!("--resume: {}: {error}", path.display()))
        })?;
        let newest = run.newest_checkpoint().map_err(failure)?;
        let tokenizer = newest.as_ref().map(saved_tokenizer).transpose()?;
        Ok(Some(Saved {
            path: run.config_path(),
            text,
            trained: true,
            tokenizer: tokenizer.flatten(),
            samples: newest.as_ref().and_then(saved_samples),
        }))
    }

    /// That the run is one of this very command: a launcher may give it again although it failed
    /// since another run has the folder.
    pub(super) fn check(&self, run: &Resume, resolved: &str) -> Result<(), Failure> {
        if chosen(run.config().1) == chosen(resolved) {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "--out {}: the folder holds a run of another configuration than this command's: \
             choose another folder, or go on with that run by --resume {}",
            self.folder.display(),
            quoted(&self.folder)
        )))
    }
}

/// What a run has taken where nobody said anything, and which may be another thing on this machine or
/// in this number of processes.
fn found_out(config: &str) -> String {
    let table = config.parse::<toml::Table>().unwrap_or_default();
    let own = table.get("pipeline").and_then(toml::Value::as_table);
    let own = own.into_iter().flatten();
    let own = own.filter(|(key, _)| ["micro", "kernels"].contains(&key.as_str()));
    let own: toml::Table = own
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    toml::Table::from_iter([("pipeline".to_owned(), own.into())]).to_string()
}

/// What a command decides wherever it runs: threads follow from the cores, and where the layers are
/// cut from the number of processes.
fn chosen(config: &str) -> Option<toml::Table> {
    let mut table = config.parse::<toml::Table>().ok()?;
    let pipeline = table.get_mut("pipeline").and_then(|own| own.as_table_mut());
    if let Some(pipeline) = pipeline {
        pipeline.remove("threads_per_stage");
        pipeline.remove("balance");
    }
    Some(table)
}
