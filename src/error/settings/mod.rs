//! Settings that do not fit: which one, and which rule it breaks.

mod setting;
mod words;

use std::fmt;

use gpipe_partitioner::words::count;
use gpipe_partitioner::{Bytes, ScheduleKind};
use tch::Device;
use thiserror::Error;

pub use setting::Setting;

/// A setting that cannot be, alone or beside the others.
///
/// It displays settings by the names of the methods that set them; [`SettingsError::named`]
/// tells the same in the caller's own names, those of flags, say.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{}", self.named(&|setting| format!("`{}`", setting.name())))]
#[non_exhaustive]
pub struct SettingsError {
    /// What was set.
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
    /// There is none of it, and at least one is needed.
    None,
    /// Two layers or parameters have one name.
    Duplicate {
        /// `layer` or `parameter`.
        what: &'static str,
        /// Their name.
        name: String,
    },
    /// It has not as many entries as there are stages, layers or devices.
    Count {
        /// Entries.
        given: usize,
        /// As many as there are to be.
        wanted: usize,
        /// What has one each.
        each: &'static str,
    },
    /// The balance is for another number of stages.
    Stages {
        /// Stages that it names.
        given: usize,
        /// How many there are.
        made: StageCount,
    },
    /// A schedule of one's own is for other numbers.
    OtherSchedule {
        /// Its name.
        schedule: String,
        /// Its devices.
        devices: usize,
        /// Its stages.
        stages: usize,
        /// Its micro-batches.
        micro_batches: usize,
        /// What was given of the setting.
        given: usize,
    },
    /// A tree cannot have so many leaves.
    Leaves {
        /// As many as were asked for.
        given: usize,
        /// The most that there can be.
        most: usize,
    },
    /// There cannot be so many replicas.
    Replicas {
        /// As many as were asked for.
        given: usize,
        /// Devices of all of them.
        devices: usize,
        /// Leaves of the tree that they share.
        leaves: usize,
    },
    /// There is no stage of this number.
    NoStage {
        /// The number.
        stage: usize,
        /// As many as there are.
        stages: usize,
    },
    /// It is for CUDA devices, and there is none.
    NoCudaDevice,
    /// A limit of memory for a CPU.
    LimitOfCpu {
        /// Its place in the list of devices.
        place: usize,
        /// The limit.
        limit: Bytes,
    },
    /// A device that is named several times has a limit of memory and has none.
    LimitedAndNot {
        /// The device.
        device: Device,
    },
    /// The machine, or libtorch, does not have it: why.
    Unavailable(String),
    /// Anything else, in words.
    Invalid(String),
}

/// How the number of stages comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageCount {
    /// Devices.
    pub devices: usize,
    /// Stages of each.
    pub chunks: usize,
    /// The schedule, where it decides the chunks.
    pub by: Option<ScheduleKind>,
}

impl StageCount {
    /// So many devices of so many chunks, which a schedule may have decided.
    pub fn new(devices: usize, chunks: usize, by: Option<ScheduleKind>) -> Self {
        Self {
            devices,
            chunks,
            by,
        }
    }

    /// Devices times chunks.
    pub fn stages(&self) -> usize {
        self.devices.saturating_mul(self.chunks)
    }

    /// The same in words, with the settings' names.
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

/// Reads back as the same: in the largest unit of which it is a whole number.
pub(crate) fn in_whole_units(Bytes(bytes): Bytes) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = |(_, power): &(&str, u32)| bytes.is_multiple_of(1 << power);
    match units.into_iter().find(whole) {
        Some((unit, power)) => format!("{}{unit}", bytes >> power),
        None => format!("{bytes}B"),
    }
}
