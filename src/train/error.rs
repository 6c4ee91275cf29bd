//! Errors of a run.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use gpipe_partitioner::explain::ExplainError;
use gpipe_partitioner::words::count;
use thiserror::Error;

use crate::checkpoint::CheckpointError;
use crate::metrics::{METRICS_FILE, MetricsError};
use crate::{CHECKPOINTS, CONFIG_FILE};

/// An error of starting, resuming or finishing a run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The builder's settings conflict.
    #[error("{0}")]
    Settings(String),
    /// The folder of a new run cannot be created.
    #[error("{}: {why}", .folder.display())]
    NewFolder {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        why: String,
    },
    /// The folder of a new run already holds one.
    #[error(
        "{}: the folder already holds a run; choose another, or remove it, or resume it",
        .folder.display()
    )]
    Occupied {
        /// The folder.
        folder: PathBuf,
    },
    /// There is no run in a folder.
    #[error("{}: {why}", .folder.display())]
    NoRun {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        why: NoRun,
    },
    /// The configuration of a run cannot be read.
    #[error("{}: {CONFIG_FILE} cannot be read: {source}", .folder.display())]
    Config {
        /// The run's folder.
        folder: PathBuf,
        /// The cause.
        r#source: io::Error,
    },
    /// A run was stopped before it had a configuration or a checkpoint.
    #[error(
        "{}: it was stopped before there was anything to go on with: neither a configuration nor a \
         checkpoint; begin it again, as a new run in the same folder", .folder.display()
    )]
    NothingToResume {
        /// The run's folder.
        folder: PathBuf,
    },
    /// A run without a checkpoint has done enough steps that it must have lost one.
    #[error(
        "{}: the run has done {}, but {} has no checkpoint to go on from: put back what was there, or \
         begin anew", .folder.display(), count(*.done as usize, "step"),
        .folder.join(CHECKPOINTS).display()
    )]
    CheckpointsLost {
        /// The run's folder.
        folder: PathBuf,
        /// Steps in its metrics.
        done: u64,
    },
    /// The newest checkpoint is damaged.
    #[error("{error}; {}", or_older(.intact.as_deref()))]
    Damaged {
        /// Its error.
        error: Box<CheckpointError>,
        /// An older, intact one.
        intact: Option<PathBuf>,
    },
    /// A checkpoint lacks a part needed for resuming.
    #[error(
        "{}: the part `{part}` is missing or not what a run writes: use another checkpoint",
        .manifest.display()
    )]
    Part {
        /// The checkpoint's manifest.
        manifest: PathBuf,
        /// Name of the part.
        part: String,
    },
    /// The loss is not finite.
    #[error("the loss is {loss} at step {step}: {remedy}")]
    Diverged {
        /// The loss.
        loss: f64,
        /// The step.
        step: usize,
        /// A possible remedy.
        remedy: Box<Remedy>,
    },
    /// Weights or optimizer state are not finite after an update.
    #[error(
        "after the update of step {step} {what} `{name}` is not finite, so it was not saved{}: {remedy}",
        stays(*.whole)
    )]
    NotFinite {
        /// The step.
        step: usize,
        /// Kind of the tensor: a parameter, or optimizer state.
        what: &'static str,
        /// The parameter.
        name: String,
        /// Step of the newest complete checkpoint.
        whole: Option<u64>,
        /// A possible remedy.
        remedy: Box<Remedy>,
    },
    /// The last checkpoint of a run could not be written.
    #[error(
        "the last checkpoint, of step {step}, could not be written: {error}{}", newest(*.whole)
    )]
    NotSaved {
        /// Its step.
        step: usize,
        /// The cause.
        error: Box<CheckpointError>,
        /// Step of the newest complete checkpoint.
        whole: Option<u64>,
    },
    /// A file of the run cannot be read or written.
    #[error("cannot {what} {}: {source}", .path.display())]
    File {
        /// The failed action.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        r#source: io::Error,
    },
    /// The data gives no batch at the start.
    #[error("{0:#}")]
    Data(anyhow::Error),
    /// The data fails to give a batch during the run.
    #[error("{error:#}{}", kept(*.saved))]
    NoBatch {
        /// The cause.
        error: anyhow::Error,
        /// The run's folder.
        folder: PathBuf,
        /// Step of the saved run, if it is saved.
        saved: Option<u64>,
    },
    /// The loss function fails on held-out data.
    #[error("the loss on held-out data: {0:#}")]
    HeldOut(anyhow::Error),
    /// Signal handlers cannot be installed.
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
    /// Several files could not be written at the end.
    #[error("{}", together(.0))]
    Several(Vec<TrainError>),
    /// A step or another operation of the pipeline failed.
    #[error(transparent)]
    Pipeline(#[from] gpipe_torch::Error),
    /// A checkpoint cannot be written or used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Metrics cannot be written or read.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The last step cannot be compared with its prediction.
    #[error(transparent)]
    Explain(#[from] ExplainError),
}

impl TrainError {
    /// Whether the caller's request was invalid, as opposed to a failure at run time.
    pub fn is_wrong_use(&self) -> bool {
        match self {
            Self::Settings(_)
            | Self::NewFolder { .. }
            | Self::Occupied { .. }
            | Self::NoRun { .. }
            | Self::Config { .. }
            | Self::NothingToResume { .. }
            | Self::CheckpointsLost { .. } => true,
            Self::Pipeline(error) => error.is_wrong_use(),
            Self::Checkpoint(error) => error.is_wrong_use(),
            _ => false,
        }
    }

    pub(super) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::file("write", path)
    }

    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::file("read", path)
    }

    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }
}

/// The reason why a folder holds no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoRun {
    /// There is nothing.
    Missing,
    /// It is a file.
    File,
    /// It is a folder of something else.
    Foreign,
}

impl fmt::Display for NoRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("there is no such folder"),
            Self::File => f.write_str("this is a file, not a run folder"),
            Self::Foreign => write!(
                f,
                "this is no run folder: it has neither {CONFIG_FILE} nor {CHECKPOINTS}"
            ),
        }
    }
}

/// A remedy for non-finite values.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// A smaller learning rate.
    SmallerRate {
        /// The run's folder.
        folder: PathBuf,
        /// Step of the checkpoint to resume from.
        whole: Option<u64>,
    },
    /// An older checkpoint: the failure came in the first step after the newest one, before a smaller
    /// learning rate could help.
    OlderCheckpoint {
        /// The run's folder.
        folder: PathBuf,
        /// Step of the newest checkpoint.
        whole: u64,
        /// The newest checkpoint and the step of the previous one; `None` if there is no other.
        older: Option<(PathBuf, u64)>,
    },
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SmallerRate { whole: None, .. } => f.write_str("try a smaller learning rate"),
            Self::SmallerRate {
                folder,
                whole: Some(whole),
            } => write!(
                f,
                "try a smaller learning rate, such as by resuming {} with one, which goes on after \
                 step {whole}",
                folder.display()
            ),
            Self::OlderCheckpoint {
                folder,
                whole,
                older,
            } => {
                write!(
                    f,
                    "this is the first step after the checkpoint of step {whole}, so a smaller \
                     learning rate does not help it; where nothing else was changed, "
                )?;
                match older {
                    Some((newest, step)) => write!(
                        f,
                        "move {} away, and resuming {} goes on after step {step}",
                        newest.display(),
                        folder.display()
                    ),
                    None => f.write_str("begin anew with a smaller one"),
                }
            }
        }
    }
}

fn or_older(path: Option<&Path>) -> String {
    path.map_or_else(
        || "no older checkpoint is intact either".to_owned(),
        |path| {
            format!(
                "the run can fall back on {}, which is intact",
                path.display()
            )
        },
    )
}

fn stays(whole: Option<u64>) -> String {
    whole.map_or_else(String::new, |whole| {
        format!("; the checkpoint of step {whole} stays as it is")
    })
}

fn kept(saved: Option<u64>) -> String {
    saved.map_or_else(String::new, |step| {
        format!("; the run is saved after step {step}, and can be resumed")
    })
}

/// Describes the newest complete checkpoint, after one that could not be written.
pub(super) fn newest(whole: Option<u64>) -> String {
    match whole {
        Some(step) => format!(" (the newest whole one is of step {step})"),
        None => " (there is no whole one)".to_owned(),
    }
}

fn together(errors: &[TrainError]) -> String {
    let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
    all.join("; and ")
}

/// Describes steps that will be repeated.
pub(super) fn once_more(steps: u64) -> String {
    match steps {
        1 => format!(", and the step in its {METRICS_FILE} is trained once more"),
        _ => format!(", and the {steps} steps in its {METRICS_FILE} are trained once more"),
    }
}
