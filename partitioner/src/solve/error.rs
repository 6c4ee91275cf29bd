//! Errors of cutting.

use std::fmt;
use std::ops::Range;

use crate::ids::{DeviceId, StageId};
use crate::partition::PartitionError;
use crate::units::Bytes;
use crate::words::count;

/// Why a chain cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SolveError {
    /// The layers cannot be assigned to the stages.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The partition has another number of stages than the schedule.
    #[error("the partition has {given}, the schedule {stages}", given = count(*given, "stage"))]
    Stages {
        /// Stages of the partition.
        given: usize,
        /// Stages of the schedule.
        stages: usize,
    },
    /// The partition has another number of layers than the profile.
    #[error("the partition has {given}, the profile {layers}", given = count(*given, "layer"))]
    Layers {
        /// Layers of the partition.
        given: usize,
        /// Layers of the profile.
        layers: usize,
    },
    /// The given cut does not fit.
    #[error("the cut does not fit: {0}")]
    Full(Shortfall),
    /// No cut fits.
    #[error("no cut fits: at best {0}")]
    Infeasible(Shortfall),
}

impl SolveError {
    /// Returns the missing memory, if that is the reason.
    pub fn shortfall(&self) -> Option<&Shortfall> {
        match self {
            Self::Full(shortfall) | Self::Infeasible(shortfall) => Some(shortfall),
            _ => None,
        }
    }
}

/// Excess of a cut over the devices' memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortfall {
    /// The device with the largest excess.
    pub device: DeviceId,
    /// Its stages with their layers.
    pub stages: Vec<(StageId, Range<usize>)>,
    /// Its limit.
    pub cap: Bytes,
    /// The memory that it needs.
    pub needs: Bytes,
    /// The change that makes it fit: per exceeded device, the bytes to add to its limit. No smaller
    /// addition to all devices is enough for any cut.
    pub raise: Vec<(DeviceId, Bytes)>,
    /// Whether that is proved, or only the best found.
    pub proved: bool,
}

impl Shortfall {
    /// Bytes that the fullest device lacks.
    pub fn missing(&self) -> Bytes {
        self.needs - self.cap
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} needs {}", self.device, self.needs)?;
        for (index, (stage, layers)) in self.stages.iter().enumerate() {
            let lead = if index == 0 { " for" } else { " and" };
            write!(
                f,
                "{lead} stage {stage} (layers {}..{})",
                layers.start,
                layers.end - 1
            )?;
        }
        write!(f, " and has {}; it fits with ", self.cap)?;
        for (index, (device, bytes)) in self.raise.iter().enumerate().take(8) {
            let lead = if index == 0 { "" } else { ", " };
            write!(f, "{lead}{} more on device {device}", bytes.rounded_up())?;
        }
        if self.raise.len() > 8 {
            write!(f, ", and less on {} more", self.raise.len() - 8)?;
        }
        if !self.proved {
            f.write_str(" (not proved to be the least)")?;
        }
        Ok(())
    }
}
