//! Errors of the library, by kind, so that callers can match on them.
//!
//! Every error type of the library follows one rule: its `Display` text includes all causes, and
//! [`source`](std::error::Error::source) returns none of them again. So `{error}` prints
//! everything, and a report that walks the sources (`anyhow`'s, for example) prints it once. In a
//! `thiserror` type a cause is therefore either `transparent` or a field `r#source`, which the
//! crate does not treat as a source.

pub mod settings;
mod torch;

use gpipe_partitioner::{PartitionError, ScheduleError};
use thiserror::Error;

use crate::BatchError;
use gpipe_engine::{EngineError, StageError, TopologyError};

pub use settings::{Setting, SettingsError, SettingsRule, StageCount};
pub use torch::TorchError;

/// Reason why a [`Pipeline`](crate::Pipeline) could not be built or a step failed.
///
/// A failed step leaves the pipeline as it was before, ready for further use.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The model and the settings do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The layers cannot be divided into stages as asked.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The schedule does not exist for these numbers of devices, stages or micro-batches.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A layer cannot be built.
    #[error("{0:#}")]
    Build(anyhow::Error),
    /// The batch cannot be split, or the outputs cannot be joined.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A stage failed, or the engine could not do what it was asked.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An accelerator failed while the calling thread used it before or after the stages.
    #[error("{0:#}")]
    Accelerator(anyhow::Error),
    /// libtorch reported an error outside of a stage.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// An optimizer update was interrupted: some weights are updated and others are not. No caller
    /// sees this state: the next call on the pipeline first resumes the update where it stopped,
    /// and fails with this error again if the update does.
    #[error(
        "{source}: the optimizer's update has begun and is not at its end; the next call goes on with \
         it before anything else (if it never succeeds, start the process anew, from a checkpoint)"
    )]
    Update {
        /// The error that interrupted it.
        r#source: Box<Error>,
    },
    /// Gradients stay non-finite at every loss scale. The step is undone.
    #[error(
        "{what} is not finite, with a loss scale as small as {scale}: the model itself leaves the \
         range of fp16 (find out where with `NonFinite::Fail`, use bf16, or train more gently)"
    )]
    LossScale {
        /// The loss scale of the step.
        scale: f64,
        /// The non-finite value.
        what: String,
    },
    /// A layer failed while it was profiled.
    #[error("layer `{layer}`, {action}: {source:#}")]
    Profile {
        /// The layer's name.
        layer: String,
        /// The profiled action.
        action: &'static str,
        /// Why it failed.
        r#source: anyhow::Error,
    },
    /// Stages and edges do not fit together.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

impl Error {
    /// Returns where and why a step failed, if it failed inside a stage.
    pub fn stage_error(&self) -> Option<&StageError> {
        match self {
            Self::Engine(error) => error.stage_error(),
            Self::Update { r#source } => r#source.stage_error(),
            _ => None,
        }
    }

    /// Returns whether the caller asked for something impossible, as opposed to a failure at run
    /// time.
    pub fn is_wrong_use(&self) -> bool {
        matches!(
            self,
            Self::Settings(_) | Self::Partition(_) | Self::Schedule(_)
        )
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}

/// Lets infallible conversions be used where a conversion may fail.
impl From<std::convert::Infallible> for Error {
    fn from(none: std::convert::Infallible) -> Self {
        match none {}
    }
}
