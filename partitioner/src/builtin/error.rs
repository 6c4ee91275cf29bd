//! Errors of schedule generation.

use super::{ScheduleKind, Shape};
use crate::check::CheckError;
use crate::ids::DeviceId;
use crate::units::Bytes;
use crate::words::instead;

/// Formats a schedule's name in a list of all; marks the one that does not train.
fn listed(kind: ScheduleKind) -> String {
    if kind.trains() {
        kind.to_string()
    } else {
        format!("{kind} (without training)")
    }
}

/// Why there is no schedule of the kind and shape asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// No built-in schedule has this name.
    #[error(
        "there is no schedule `{name}`{}",
        instead(
            suggestion.map(ScheduleKind::name),
            &format!("there are {}", ScheduleKind::ALL.map(listed).join(", "))
        )
    )]
    UnknownName {
        /// The name that was asked for.
        name: String,
        /// The schedule of similar name.
        suggestion: Option<ScheduleKind>,
    },
    /// The schedule is impossible for these numbers.
    #[error(
        "`{kind}` cannot be made for {} devices, {} chunks and {} micro-batches: it needs {needs}",
        shape.devices, shape.chunks, shape.micro_batches
    )]
    Unsupported {
        /// The schedule.
        kind: ScheduleKind,
        /// The numbers asked for.
        shape: Shape,
        /// The numbers that work.
        needs: &'static str,
    },
    /// Every candidate exceeds a memory cap.
    #[error(
        "no schedule of {} devices, {} chunks and {} micro-batches fits the memory: the nearest, {name}, \
         exceeds the cap of device {device} by {over}",
        shape.devices, shape.chunks, shape.micro_batches
    )]
    NothingFits {
        /// The numbers asked for.
        shape: Shape,
        /// Name of the schedule with the least excess.
        name: String,
        /// The device with the largest excess.
        device: DeviceId,
        /// Bytes by which its peak exceeds the cap.
        over: Bytes,
    },
    /// The generated list of actions is not legal.
    #[error(transparent)]
    Illegal(#[from] CheckError),
}
