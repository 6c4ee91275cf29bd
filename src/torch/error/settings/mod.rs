//! Errors of invalid settings: the setting and the rule that it breaks.

mod messages;
mod setting;

use std::fmt;

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Bytes, ScheduleKind};
use tch::Device;
use thiserror::Error;

pub use setting::Setting;

/// An invalid setting, or one that conflicts with other settings.
///
/// The `Display` text names settings by the methods that set them; [`SettingsError::named`] uses
/// names of the caller's choice, such as those of flags.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{}", self.named(&|setting| format!("`{}`", setting.name())))]
#[non_exhaustive]
pub struct SettingsError {
    /// The offending setting.
    pub setting: Setting,
    /// The rule that it breaks.
    pub rule: SettingsRule,
}

impl SettingsError {
    pub(crate) fn new(setting: Setting, rule: SettingsRule) -> Self {
        Self { setting, rule }
    }

    pub(crate) fn invalid(setting: Setting, why: impl Into<String>) -> Self {
        Self::new(setting, SettingsRule::Invalid(why.into()))
    }

    pub(crate) fn unavailable(setting: Setting, why: &impl fmt::Display) -> Self {
        Self::new(setting, SettingsRule::Unavailable(why.to_string()))
    }
}

/// A rule that a setting breaks.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SettingsRule {
    /// The count is zero, and at least one is needed.
    None,
    /// Two layers or two parameters have the same name.
    Duplicate {
        /// `layer` or `parameter`.
        what: &'static str,
        /// Their name.
        name: String,
    },
    /// The number of entries differs from the number of stages, layers or devices.
    Count {
        /// Number of entries given.
        given: usize,
        /// Number of entries needed.
        wanted: usize,
        /// Kind of thing that needs one entry each.
        each: &'static str,
    },
    /// The balance is for a different number of stages.
    Stages {
        /// Stages in the balance.
        given: usize,
        /// Stages of the pipeline.
        made: StageCount,
    },
    /// A custom schedule was made for different numbers.
    OtherSchedule {
        /// Name of the schedule.
        schedule: String,
        /// Devices of the schedule.
        devices: usize,
        /// Stages of the schedule.
        stages: usize,
        /// Micro-batches of the schedule.
        micro_batches: usize,
        /// Number given for the setting.
        given: usize,
    },
    /// A tree cannot have this many leaves.
    Leaves {
        /// Leaves asked for.
        given: usize,
        /// Most leaves possible.
        most: usize,
    },
    /// There cannot be this many replicas.
    Replicas {
        /// Replicas asked for.
        given: usize,
        /// Devices of all replicas together.
        devices: usize,
        /// Leaves of the tree that the replicas share.
        leaves: usize,
    },
    /// There is no stage with this number.
    NoStage {
        /// Number of the missing stage.
        stage: usize,
        /// Number of stages that exist.
        stages: usize,
    },
    /// The setting applies to CUDA devices only, and there is none.
    NoCudaDevice,
    /// A memory limit was set for a CPU device.
    LimitOfCpu {
        /// Position in the list of devices.
        place: usize,
        /// The limit.
        limit: Bytes,
    },
    /// A device that is listed several times has a memory limit in one place and none in another.
    LimitedAndNot {
        /// The device.
        device: Device,
    },
    /// The machine or libtorch lacks support, for this reason.
    Unavailable(String),
    /// Any other reason, in words.
    Invalid(String),
}

/// Derivation of the number of stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageCount {
    /// Number of devices.
    pub devices: usize,
    /// Stages per device.
    pub chunks: usize,
    /// Schedule that fixes the number of chunks, if one does.
    pub by: Option<ScheduleKind>,
}

impl StageCount {
    /// Creates the count from devices and chunks per device, and the schedule that fixed the
    /// chunks.
    pub fn new(devices: usize, chunks: usize, by: Option<ScheduleKind>) -> Self {
        Self {
            devices,
            chunks,
            by,
        }
    }

    /// Number of stages: devices times chunks.
    pub fn stages(&self) -> usize {
        self.devices.saturating_mul(self.chunks)
    }

    /// Describes the count in words, with the caller's names for the settings.
    pub fn named(&self, name: &dyn Fn(Setting) -> String) -> String {
        let (devices, chunks, stages) = (self.devices, self.chunks, self.stages());
        match self.by {
            _ if chunks == 1 => format!(
                "{} makes {stages}",
                name(Setting::Devices),
                stages = count(stages, "stage")
            ),
            None => {
                let own = name(Setting::Chunks);
                format!(
                    "{devices} with {own} {chunks} make {stages}",
                    stages = count(stages, "stage"),
                    devices = count(devices, "device")
                )
            }
            Some(schedule) => format!(
                "{devices} with {chunks} chunks each ({} {schedule}) make {stages}",
                name(Setting::Schedule),
                stages = count(stages, "stage"),
                devices = count(devices, "device")
            ),
        }
    }
}

/// Formats bytes in the largest unit that divides them exactly, so that the text parses back to the
/// same number.
pub fn in_whole_units(Bytes(bytes): Bytes) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = |(_, power): &(&str, u32)| bytes.is_multiple_of(1 << power);
    match units.into_iter().find(whole) {
        Some((unit, power)) => format!("{}{unit}", bytes >> power),
        None => format!("{bytes}B"),
    }
}
