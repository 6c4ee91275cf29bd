//! Why a schedule cannot be generated.

use super::{ScheduleKind, Shape};
use crate::check::CheckError;

/// Why there is no schedule of the kind and shape asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// No built-in schedule has this name.
    #[error(
        "there is no schedule `{name}`{}; there are {}",
        suggestion.map_or(String::new(), |kind| format!(", did you mean `{kind}`?")),
        ScheduleKind::names()
    )]
    UnknownName {
        /// What was asked for.
        name: String,
        /// The nearest name that exists.
        suggestion: Option<ScheduleKind>,
    },
    /// The schedule cannot be made for these numbers.
    #[error(
        "`{kind}` cannot be made for {} devices, {} chunks and {} micro-batches: it needs {needs}",
        shape.devices, shape.chunks, shape.micro_batches
    )]
    Unsupported {
        /// Which schedule.
        kind: ScheduleKind,
        /// The numbers asked for.
        shape: Shape,
        /// Which numbers work.
        needs: &'static str,
    },
    /// The generated list of actions is not legal.
    #[error(transparent)]
    Illegal(#[from] CheckError),
}
