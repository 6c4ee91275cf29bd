//! Restarts: a launcher that restarts a failed run (torchrun, `launch`, SLURM with `--requeue`) gives
//! each process its original command line. The run then resumes from its checkpoint, instead of failing
//! because its folder exists.

use std::path::PathBuf;
use std::sync::Arc;

use gpipe_partitioner::words::quoted;

use super::configured::Saved;
use super::options::Args;
use crate::trained::{saved_samples, saved_tokenizer};
use crate::{Failure, failure, world};
use gpipe_torch::world::World;
use gpipe_train::{Resume, RunFolder, TrainError};

/// A run begun by an earlier start of this command.
#[derive(Debug)]
pub(super) struct Begun {
    /// The run's folder.
    pub(super) folder: PathBuf,
}

impl Begun {
    /// Finds the run; `None` at the first start, or if earlier starts made no run folder. All processes
    /// call this; rank 0 looks.
    ///
    /// # Errors
    /// The run could not be found again, or a process is lost.
    pub(super) fn find(args: &Args, world: Option<&Arc<World>>) -> Result<Option<Self>, Failure> {
        let starts = world::starts()?;
        let Some(folder) = &args.out else {
            // Without a fork, the resumed run is continued at each start.
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

    /// The configuration below this command's own: nothing of the run itself, which may be another one,
    /// except settings that the command leaves to the machine.
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

    /// Checks that the run belongs to this command: a launcher may also restart a command that failed
    /// because another run has the folder.
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

/// Returns the settings that a run chose by itself, which may differ on this machine or with this
/// number of processes.
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

/// Returns the settings that do not depend on the machine: threads follow from the cores, and the
/// balance from the number of processes.
fn chosen(config: &str) -> Option<toml::Table> {
    let mut table = config.parse::<toml::Table>().ok()?;
    let pipeline = table.get_mut("pipeline").and_then(|own| own.as_table_mut());
    if let Some(pipeline) = pipeline {
        pipeline.remove("threads_per_stage");
        pipeline.remove("balance");
    }
    Some(table)
}
