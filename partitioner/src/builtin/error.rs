//! Why a schedule cannot be generated.

use super::{ScheduleKind, Shape};
use crate::check::CheckError;
use crate::ids::DeviceId;
use crate::units::Bytes;
use crate::words::instead;

/// A schedule's name in a list of all; with the one that no training takes it is said.
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
        /// The schedule whose name it is with a slip.
        suggestion: Option<ScheduleKind>,
    },
    /// The schedule cannot be made for these numbers.
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
    /// Every schedule that was tried exceeds a memory cap.
    #[error(
        "no schedule of {} devices, {} chunks and {} micro-batches fits the memory: the nearest, {name}, \
         exceeds the cap of device {device} by {over}",
        shape.devices, shape.chunks, shape.micro_batches
    )]
    NothingFits {
        /// The numbers asked for.
        shape: Shape,
        /// The schedule that exceeds its caps least.
        name: String,
        /// The device that it exceeds most.
        device: DeviceId,
        /// The bytes by which its peak is above the cap.
        over: Bytes,
    },
    /// The generated list of actions is not legal.
    #[error(transparent)]
    Illegal(#[from] CheckError),
}
