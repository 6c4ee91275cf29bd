//! What can go wrong, for the caller to tell apart.
//!
//! One rule for every error type of the library: what it displays has all causes in it, and
//! [`source`](std::error::Error::source) gives none of them again. So `{error}` says all, and
//! a report that walks along the sources (`anyhow`'s, say) says it once. In a type made with
//! `thiserror` a cause is therefore either `transparent`, or a field `r#source`, which the
//! crate does not take for a source.

pub(crate) mod settings;

use gpipe_partitioner::{PartitionError, ScheduleError};
use thiserror::Error;

use crate::engine::{EngineError, StageError, TopologyError};
use crate::torch::BatchError;
use crate::torch::TorchError;

pub use settings::{Setting, SettingsError, SettingsRule, StageCount};

/// Why a [`Pipeline`](crate::Pipeline) could not be made, or a step not be done.
///
/// After a failed step the pipeline is as it was before it and can be used on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The model and the settings do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The layers cannot be assigned to stages this way.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// There is no such schedule for these numbers.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A layer cannot be built.
    #[error("{0:#}")]
    Build(anyhow::Error),
    /// The batch cannot be split, or the outputs not be joined.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A stage failed, or the engine could not do what it was asked.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An accelerator failed in what the calling thread does with it before or after the
    /// stages.
    #[error("{0:#}")]
    Accelerator(anyhow::Error),
    /// libtorch refused outside of a stage.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// An optimizer's update has begun and stopped: some weights are updated and others are not.
    /// Nobody sees them so: whatever is asked of the pipeline next goes on with the update first,
    /// where it has stopped, and is refused with this error if that fails again.
    #[error(
        "{source}: the optimizer's update has begun and is not at its end; the next call goes on with \
         it before anything else (if it never succeeds, start the process anew, from a checkpoint)"
    )]
    Update {
        /// What stopped it.
        r#source: Box<Error>,
    },
    /// Nothing that a loss scale could do makes the gradients finite. The step is undone.
    #[error(
        "{what} is not finite, with a loss scale as small as {scale}: the model itself leaves the \
         range of fp16 (find out where with `NonFinite::Fail`, use bf16, or train more gently)"
    )]
    LossScale {
        /// The loss scale of the step.
        scale: f64,
        /// What is not finite.
        what: String,
    },
    /// A layer failed while it was profiled.
    #[error("layer `{layer}`, {action}: {source:#}")]
    Profile {
        /// The layer's name.
        layer: String,
        /// What it was doing.
        action: &'static str,
        /// Why it failed.
        r#source: anyhow::Error,
    },
    /// Stages and edges do not fit together.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

impl Error {
    /// Where a step failed and why, if it failed inside of a stage.
    pub fn stage_error(&self) -> Option<&StageError> {
        match self {
            Self::Engine(error) => error.stage_error(),
            Self::Update { r#source } => r#source.stage_error(),
            _ => None,
        }
    }

    /// Whether the caller asked for something that cannot be, rather than
    /// something failed on the way.
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

/// What needs no conversion is converted without an error.
impl From<std::convert::Infallible> for Error {
    fn from(none: std::convert::Infallible) -> Self {
        match none {}
    }
}
