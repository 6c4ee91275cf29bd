//! Number of micro-batches in flight.
//!
//! A device runs its list in order, so the number that it holds at each point of the list does not
//! depend on times.

use crate::ids::DeviceId;
use crate::schedule::{Action, ActionKind, Schedule};

/// Peaks per stage and, in device-micro-batches, per device.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) stages: Vec<usize>,
    pub(super) devices: Vec<f64>,
}

#[derive(Clone, Copy, Default)]
struct InFlightLevel {
    now: usize,
    peak: usize,
}

impl InFlightLevel {
    fn rise(&mut self) {
        self.now += 1;
        self.peak = self.peak.max(self.now);
    }

    fn fall(&mut self) {
        self.now -= 1;
    }
}

/// Counts along each device's list.
pub(super) struct Counter {
    stages: Vec<InFlightLevel>,
    devices: Vec<InFlightLevel>,
    chunks: Vec<usize>,
    training: bool,
}

impl Counter {
    pub(super) fn new(schedule: &Schedule, owner: &[u32], training: bool) -> Self {
        let mut chunks = vec![0; schedule.devices()];
        for &device in owner {
            chunks[device as usize] += 1;
        }
        Self {
            stages: vec![InFlightLevel::default(); schedule.stages()],
            devices: vec![InFlightLevel::default(); schedule.devices()],
            chunks,
            training,
        }
    }

    pub(super) fn see(&mut self, device: DeviceId, action: Action) {
        let levels = [
            &mut self.stages[action.stage.index()],
            &mut self.devices[device.index()],
        ];
        for level in levels {
            if action.kind == ActionKind::Forward {
                level.rise();
            }
            if action.kind.accumulates() || !self.training {
                level.fall();
            }
        }
    }

    pub(super) fn finish(self) -> InFlight {
        let share =
            |(level, &chunks): (&InFlightLevel, &usize)| level.peak as f64 / chunks.max(1) as f64;
        InFlight {
            stages: self.stages.iter().map(|level| level.peak).collect(),
            devices: self.devices.iter().zip(&self.chunks).map(share).collect(),
        }
    }
}
