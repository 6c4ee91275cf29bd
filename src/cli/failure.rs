//! Explains library errors in terms of command-line flags.

use std::path::Path;

use anyhow::anyhow;
use gpipe_partitioner::words::{count, quoted};

use super::Failure;
use gpipe_data::{DataError, Place};
use gpipe_decide::find_run;
use gpipe_engine::EngineError;
use gpipe_torch::Error;
use gpipe_torch::world::RESTART_MAY_HELP;
use gpipe_train::checkpoint::CheckpointError;
use gpipe_train::{CHECKPOINTS, CONFIG_FILE, NoRun, Remedy, TrainError};

/// Library errors that distinguish wrong use from a failed run.
pub(super) trait IntoFailure {
    fn failure(self) -> Failure;
}

/// Converts a library error into wrong use or a failed run.
pub(super) fn failure(error: impl IntoFailure) -> Failure {
    error.failure()
}

impl IntoFailure for Error {
    fn failure(self) -> Failure {
        if self.is_wrong_use() {
            return Failure::Usage(self.to_string());
        }
        if let Self::Engine(EngineError::Lost(lost)) = &self {
            return Failure::Exit(lost.to_string(), RESTART_MAY_HELP);
        }
        Failure::Run(self.into())
    }
}

impl IntoFailure for CheckpointError {
    fn failure(self) -> Failure {
        if let Some(lost) = self.cause().lost() {
            return Failure::Exit(lost.to_string(), lost.exit_code());
        }
        if let Self::Pipeline(error @ Error::Engine(EngineError::Lost(_))) = self {
            return failure(error);
        }
        if self.is_wrong_use() {
            return Failure::Usage(self.to_string());
        }
        Failure::Run(self.into())
    }
}

impl IntoFailure for TrainError {
    fn failure(self) -> Failure {
        match self {
            Self::NewFolder { folder, why } => usage("--out", &folder, &why),
            Self::Occupied { folder } => {
                let why = format!(
                    "the folder already holds a run; choose another, or remove it, or go on with \
                     it by --resume {}",
                    quoted(&folder)
                );
                usage("--out", &folder, &why)
            }
            Self::NoRun { folder, why } => no_run("--resume", &folder, why),
            Self::Config { folder, source } => {
                let why = format!("{CONFIG_FILE} cannot be read: {source}");
                usage("--resume", &folder, &why)
            }
            Self::NothingToResume { folder } => usage(
                "--resume",
                &folder,
                "it was stopped before there was anything to go on with: neither a configuration \
                 nor a checkpoint; begin it again, in the same folder, with --out",
            ),
            Self::CheckpointsLost { folder, done } => {
                let why = format!(
                    "the run has done {}, but {} has no checkpoint to go on from: put back what \
                     was there, or begin anew with `train --config {}`",
                    count(done as usize, "step"),
                    folder.join(CHECKPOINTS).display(),
                    quoted(folder.join(CONFIG_FILE))
                );
                usage("--resume", &folder, &why)
            }
            Self::Damaged { error, intact } => Failure::Run(match intact {
                Some(older) => anyhow!(
                    "{error}; --resume-fallback goes on from {}, which is intact",
                    older.display()
                ),
                None => anyhow!("{error}; no older checkpoint is intact either"),
            }),
            Self::Part { manifest, part } => Failure::Run(anyhow!(
                "{}: the part `{part}` is missing or not what `train` writes: use another \
                 checkpoint",
                manifest.display()
            )),
            Self::Diverged { loss, step, remedy } => Failure::Run(anyhow!(
                "the loss is {loss} at step {step}: {}",
                in_flags(&remedy)
            )),
            Self::NotFinite {
                step,
                what,
                name,
                whole,
                remedy,
            } => {
                let stays = whole.map_or_else(String::new, |whole| {
                    format!("; the checkpoint of step {whole} stays as it is")
                });
                Failure::Run(anyhow!(
                    "after the update of step {step} {what} `{name}` is not finite, so it was not \
                     saved{stays}: {}",
                    in_flags(&remedy)
                ))
            }
            Self::Several(errors) => {
                let said = errors.into_iter().map(|error| failure(error).said());
                Failure::Run(anyhow!(said.collect::<Vec<_>>().join("; and ")))
            }
            Self::NoBatch {
                error,
                folder,
                saved,
            } => Failure::Run(anyhow!("{error:#}{}", without_it(&error, &folder, saved))),
            Self::Data(error) | Self::HeldOut(error) => Failure::Run(error),
            Self::Pipeline(error) => failure(error),
            Self::Checkpoint(error) => failure(error),
            error if error.is_wrong_use() => Failure::Usage(error.to_string()),
            error => Failure::Run(error.into()),
        }
    }
}

fn usage(flag: &str, folder: &Path, why: &str) -> Failure {
    Failure::Usage(format!("{flag} {}: {why}", folder.display()))
}

/// The error for a folder, named by a flag, that holds no run.
pub(super) fn no_run(flag: &str, folder: &Path, why: NoRun) -> Failure {
    let near = find_run::run(folder);
    let more = match why {
        NoRun::Missing if flag == "--resume" && near.is_empty() => {
            "; every run says its own when it begins"
        }
        NoRun::Foreign => ", which `train` writes",
        _ => "",
    };
    // The folder may be part of a run: suggest the run.
    let whole = folder.ancestors().skip(1).take(2);
    let mut whole = whole.filter(|above| above.join(CONFIG_FILE).exists());
    let more = match (why, whole.next()) {
        (NoRun::Foreign, Some(run)) => format!("{more}: name the whole run, {}", run.display()),
        (NoRun::File, _) => more.to_owned(),
        _ => format!("{more}{near}"),
    };
    usage(flag, folder, &format!("{why}{more}"))
}

/// Advice where data gave no batch: an item that cannot be read can be skipped.
fn without_it(error: &anyhow::Error, folder: &Path, saved: Option<u64>) -> String {
    let kept = saved.map_or_else(String::new, |step| {
        format!("; the run is saved after step {step}")
    });
    let (thing, mend) = match error.downcast_ref() {
        Some(DataError::Item { place, .. }) => match place {
            Place::Line { .. } | Place::Row { .. } => ("row", "mend the row"),
            Place::Sample { .. } => ("sample", "mend the sample"),
            _ => ("file", "replace the file or take it away"),
        },
        Some(DataError::TooManyBad { .. }) => ("file", "replace the file or take it away"),
        _ => return kept,
    };
    if saved.is_some() {
        return format!(
            "{kept}: put the file back as it was, or leave it out with `train --resume {} --set \
             data.skip_bad=N` for at most N such {thing}s in an epoch",
            quoted(folder)
        );
    }
    format!(
        "; {mend}, or leave it out with --set data.skip_bad=N for at most N such {thing}s in an epoch"
    )
}

/// Remedies for a run with NaN or infinite values.
fn in_flags(remedy: &Remedy) -> String {
    match remedy {
        Remedy::SmallerRate {
            folder,
            whole: Some(whole),
        } => format!(
            "try a smaller --lr, such as with `train --resume {} --lr RATE`, which goes on after \
             step {whole}",
            quoted(folder)
        ),
        Remedy::OlderCheckpoint {
            folder,
            whole,
            older,
        } => {
            let instead = match older {
                Some((newest, step)) => format!(
                    "move {} away, and `train --resume {}` goes on after step {step}",
                    newest.display(),
                    quoted(folder)
                ),
                None => "begin anew with a smaller one".to_owned(),
            };
            format!(
                "this is the first step after the checkpoint of step {whole}, so a smaller --lr \
                 does not help it; where nothing else was changed, {instead}"
            )
        }
        _ => "try a smaller --lr".to_owned(),
    }
}
