//! Violations of the rules of legality.

use super::{MAX_CELLS, MAX_STAGES};
use crate::ids::{DeviceId, MicroId, StageId};
use crate::schedule::{Action, ActionKind};
use crate::words::count;
use std::fmt::Write as _;

/// A device that cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The device.
    pub device: DeviceId,
    /// Index in its list.
    pub position: usize,
    /// Its next action.
    pub action: Action,
    /// The action that must be done first.
    pub waits_for: Action,
    /// The device whose list has `waits_for` further down.
    pub on: DeviceId,
}

/// Why a schedule is not legal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The schedule is empty.
    #[error(
        "a schedule has at least one stage and one micro-batch, this one has {stages} and {micro_batches}"
    )]
    Empty {
        /// The number of stages.
        stages: usize,
        /// The number of micro-batches.
        micro_batches: usize,
    },
    /// The schedule is too large.
    #[error(
        "{stages} and {micro_batches} are too many: at most {MAX_STAGES} stages, \
         and stages times micro-batches at most {MAX_CELLS}", stages = count(*stages, "stage"), micro_batches = count(*micro_batches, "micro-batch"))]
    TooLarge {
        /// The number of stages.
        stages: usize,
        /// The number of micro-batches.
        micro_batches: usize,
    },
    /// A stage or micro-batch that the schedule does not have.
    #[error(
        "device {device}, action {position}: {action} is out of range: \
         there are {stages} and {micro_batches}", stages = count(*stages, "stage"), micro_batches = count(*micro_batches, "micro-batch"))]
    OutOfRange {
        /// The device.
        device: DeviceId,
        /// The place in the device's list, from 0.
        position: usize,
        /// The action.
        action: Action,
        /// The number of stages.
        stages: usize,
        /// The number of micro-batches.
        micro_batches: usize,
    },
    /// A stage has actions on more than one device.
    #[error("device {second}, action {position}: {action}, but stage {stage} is on device {first}")]
    StageOnTwoDevices {
        /// The stage.
        stage: StageId,
        /// The device of its first action.
        first: DeviceId,
        /// The device of the action.
        second: DeviceId,
        /// The place in that device's list, from 0.
        position: usize,
        /// The action.
        action: Action,
    },
    /// An action occurs twice.
    #[error("device {device}, action {position}: {action} for the second time")]
    Doubled {
        /// The device.
        device: DeviceId,
        /// The place of the second one in the device's list, from 0.
        position: usize,
        /// The action.
        action: Action,
    },
    /// A stage has both a joint and a split backward of a micro-batch.
    #[error(
        "device {device}, action {position}: {action}, but this micro-batch already has {}: \
         a stage does either B or I and W",
        if action.kind == ActionKind::Backward { "a half backward (I or W)" } else { "a joint backward (B)" }
    )]
    TwoBackwards {
        /// The device.
        device: DeviceId,
        /// The place of the second one in the device's list, from 0.
        position: usize,
        /// The second one.
        action: Action,
    },
    /// A recompute comes after its backward.
    #[error(
        "device {device}, action {position}: {action} comes after the backward of its micro-batch"
    )]
    LateRecompute {
        /// The device.
        device: DeviceId,
        /// The place in the device's list, from 0.
        position: usize,
        /// The recompute.
        action: Action,
    },
    /// An action is missing.
    #[error(
        "{action} is missing{}",
        device.map_or(" (no device has this stage)".to_owned(), |d| format!(" on device {d}"))
    )]
    Missing {
        /// The missing action; B if there is no backward at all.
        action: Action,
        /// The device of its stage, if the stage is anywhere.
        device: Option<DeviceId>,
    },
    /// An overlapped pair is not a forward and the joint backward after it.
    #[error(
        "device {device}, action {position}: an overlapped pair is a forward (F) and the joint backward (B) \
         after it, in increasing order of place"
    )]
    NotAPair {
        /// The device.
        device: DeviceId,
        /// Index at which the pair would start.
        position: usize,
    },
    /// An offload without a forward of a training step.
    #[error(
        "the activations of micro-batch {micro} on stage {stage} are offloaded, but {}",
        if *is_training { "there is no such forward" } else { "inference keeps none" }
    )]
    NothingToOffload {
        /// The stage.
        stage: StageId,
        /// The micro-batch.
        micro: MicroId,
        /// Whether the schedule has any backward.
        is_training: bool,
    },
    /// Devices wait for each other: each one in the list for the next one, the last one for the
    /// first one. A single device waits for itself.
    #[error("{}", describe(cycle))]
    Deadlock {
        /// The cycle of waiting devices.
        cycle: Vec<Blocked>,
    },
}

fn describe(cycle: &[Blocked]) -> String {
    let mut text = String::from("deadlock: ");
    for (i, blocked) in cycle.iter().enumerate() {
        let Blocked {
            device,
            position,
            action,
            waits_for,
            on,
        } = blocked;
        let separator = if i == 0 { "" } else { "; " };
        let place = if on == device {
            "later on the same device".to_owned()
        } else {
            format!("on device {on}")
        };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{separator}device {device}, action {position}: {action} waits for {waits_for} {place}"
        );
    }
    text
}
