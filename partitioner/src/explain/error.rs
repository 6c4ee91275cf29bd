//! Errors of runs that cannot be compared.

use crate::ids::DeviceId;
use crate::schedule::Action;

/// Why a measured timeline does not belong to the predicted schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// An action was measured that the schedule does not have.
    #[error(
        "{action} was measured on device {device}, but the predicted schedule `{schedule}` does not have it: \
         compare a run with the schedule that it ran"
    )]
    NotScheduled {
        /// The action.
        action: Action,
        /// The device that ran the action.
        device: DeviceId,
        /// The schedule's name.
        schedule: String,
    },
    /// An action was measured twice.
    #[error("{action} was measured twice: give the timeline of one step")]
    Twice {
        /// The action.
        action: Action,
    },
    /// The schedule has an action that was not measured.
    #[error(
        "{action} of device {device} was not measured: give the timeline of a whole step of the schedule `{schedule}`"
    )]
    NotMeasured {
        /// The action.
        action: Action,
        /// The device that it belongs to.
        device: DeviceId,
        /// The schedule's name.
        schedule: String,
    },
}
