//! Schedules: the actions of each device, in order.
//!
//! A schedule is data: a list of [`Action`]s per device. The built-in ones are in
//! [`builtin`](crate::builtin); [`check`](crate::check) decides whether a schedule can run.

mod action;
mod csv;
mod in_a_row;
mod offload;
mod placement;
mod recompute;

pub use action::{Action, ActionKind};
pub use csv::CsvError;
pub use offload::OffloadMove;
pub use placement::Placement;

use std::collections::BTreeSet;

use crate::ids::{DeviceId, MicroId, StageId};

/// Largest number of stages of a legal schedule.
pub const MAX_STAGES: usize = 1 << 16;

/// Largest number of stages times micro-batches of a legal schedule: larger than any pipeline (512
/// devices and 8,192 micro-batches), and small enough that broken input cannot use gigabytes.
pub const MAX_CELLS: usize = 1 << 22;

/// Size of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "pipeline parallel size")]
#[doc(alias = "virtual pipeline")]
pub struct Shape {
    /// p: number of devices.
    pub devices: usize,
    /// v: number of stages per device.
    pub chunks: usize,
    /// m: number of micro-batches of the mini-batch.
    pub micro_batches: usize,
}

impl Shape {
    /// Shape of p devices with one stage each, and m micro-batches.
    pub const fn new(devices: usize, micro_batches: usize) -> Self {
        Self {
            devices,
            chunks: 1,
            micro_batches,
        }
    }

    /// Sets v chunks per device.
    #[must_use]
    pub const fn with_chunks(self, chunks: usize) -> Self {
        Self { chunks, ..self }
    }

    /// v·p, the number of stages.
    pub const fn stages(&self) -> usize {
        self.devices.saturating_mul(self.chunks)
    }
}

/// A list of actions per device. Any lists make a `Schedule`; only [`Schedule::check`] decides
/// whether it can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    name: String,
    stages: usize,
    micro_batches: usize,
    devices: Vec<Vec<Action>>,
    /// Per device, the indices of forwards that start a pair; empty without pairs.
    pairs: Vec<Vec<usize>>,
    /// Stages and micro-batches that are offloaded, if the schedule lists them.
    offloads: BTreeSet<(StageId, MicroId)>,
}

impl Schedule {
    /// Creates a schedule over `stages` stages and `micro_batches` micro-batches with one list of
    /// actions per device.
    pub fn new(
        name: impl Into<String>,
        stages: usize,
        micro_batches: usize,
        devices: Vec<Vec<Action>>,
    ) -> Self {
        Self {
            name: name.into(),
            stages,
            micro_batches,
            devices,
            pairs: Vec::new(),
            offloads: BTreeSet::new(),
        }
    }

    /// Sets overlapped pairs: per device, in increasing order, the indices of forwards that run
    /// together with the joint backward that follows (`OVERLAP_F_B` in PyTorch). A pair is one unit
    /// of work: it starts when the inputs of both are ready, and both outputs leave at its end. An
    /// engine that runs the two one after the other may send the first output earlier.
    #[must_use]
    #[doc(alias = "OVERLAP_F_B")]
    pub fn with_pairs(self, pairs: Vec<Vec<usize>>) -> Self {
        let none = pairs.iter().all(Vec::is_empty);
        Self {
            pairs: if none { Vec::new() } else { pairs },
            ..self
        }
    }

    /// Returns the indices in `device`'s list that start an overlapped pair.
    pub fn pairs(&self, device: DeviceId) -> &[usize] {
        self.pairs.get(device.index()).map_or(&[], Vec::as_slice)
    }

    /// Returns the backward that forms a pair with the forward at this index.
    pub(crate) fn partner(&self, device: DeviceId, position: usize) -> Option<Action> {
        self.pairs(device).binary_search(&position).ok()?;
        self.actions(device).get(position + 1).copied()
    }

    /// Name of the schedule.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of stages over all devices.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// The number of micro-batches, m.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// The number of devices, p.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// The actions of `device`, in order; none for a device that does not exist.
    pub fn actions(&self, device: DeviceId) -> &[Action] {
        self.devices.get(device.index()).map_or(&[], Vec::as_slice)
    }

    /// All devices with their actions.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceId, &[Action])> {
        self.devices
            .iter()
            .enumerate()
            .map(|(device, actions)| (DeviceId(device), actions.as_slice()))
    }
}
