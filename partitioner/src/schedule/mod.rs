//! Schedules: which device does what, in which order.
//!
//! A schedule is data: a list of [`Action`]s per device. The built-in ones are in
//! [`builtin`](crate::builtin), whether one can be run says [`check`](crate::check).

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

/// The largest number of stages of a legal schedule.
pub const MAX_STAGES: usize = 1 << 16;

/// The largest number of stages times micro-batches of a legal schedule: beyond
/// any pipeline (512 devices and 8,192 micro-batches), and what keeps broken input
/// from asking for gigabytes.
pub const MAX_CELLS: usize = 1 << 22;

/// How large a schedule is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "pipeline parallel size")]
#[doc(alias = "virtual pipeline")]
pub struct Shape {
    /// p: how many devices.
    pub devices: usize,
    /// v: how many stages each device has.
    pub chunks: usize,
    /// m: into how many micro-batches the mini-batch is split.
    pub micro_batches: usize,
}

impl Shape {
    /// p devices with one stage each, m micro-batches.
    pub const fn new(devices: usize, micro_batches: usize) -> Self {
        Self {
            devices,
            chunks: 1,
            micro_batches,
        }
    }

    /// The same with v chunks per device.
    #[must_use]
    pub const fn with_chunks(self, chunks: usize) -> Self {
        Self { chunks, ..self }
    }

    /// v·p, the number of stages.
    pub const fn stages(&self) -> usize {
        self.devices.saturating_mul(self.chunks)
    }
}

/// A list of actions per device. Anything can be written down as a schedule;
/// only [`Schedule::check`] says whether it can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    name: String,
    stages: usize,
    micro_batches: usize,
    devices: Vec<Vec<Action>>,
    /// Per device the places of forwards that start a pair; empty without any.
    pairs: Vec<Vec<usize>>,
    /// Which micro-batches are offloaded, on which stage, where the schedule itself says so.
    offloads: BTreeSet<(StageId, MicroId)>,
}

impl Schedule {
    /// A schedule over `stages` stages and `micro_batches` micro-batches with one
    /// list of actions per device.
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

    /// The same with overlapped pairs: per device, in increasing order, the places
    /// of forwards that run together with the joint backward that follows them
    /// (`OVERLAP_F_B` in PyTorch's words). A pair is one unit of work: it starts
    /// when the inputs of both are there, and both results leave at its end. Who
    /// runs the two one after the other may let the first result leave earlier.
    #[must_use]
    #[doc(alias = "OVERLAP_F_B")]
    pub fn with_pairs(self, pairs: Vec<Vec<usize>>) -> Self {
        let none = pairs.iter().all(Vec::is_empty);
        Self {
            pairs: if none { Vec::new() } else { pairs },
            ..self
        }
    }

    /// The places of `device`'s list that start an overlapped pair.
    pub fn pairs(&self, device: DeviceId) -> &[usize] {
        self.pairs.get(device.index()).map_or(&[], Vec::as_slice)
    }

    /// The backward that is one unit of work with the forward at this place.
    pub(crate) fn partner(&self, device: DeviceId, position: usize) -> Option<Action> {
        self.pairs(device).binary_search(&position).ok()?;
        self.actions(device).get(position + 1).copied()
    }

    /// What the schedule is called.
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

    /// What `device` does, in order; nothing for a device that does not exist.
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
