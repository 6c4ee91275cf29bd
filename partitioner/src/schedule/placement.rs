//! Placement of stages on devices.

use super::Shape;
use crate::ids::{DeviceId, StageId};

/// Placement of the v·p stages on the p devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "stage to rank mapping")]
pub enum Placement {
    /// Chunk after chunk in the same direction: stage s on device s mod p.
    /// With one chunk: stage s on device s.
    Loop,
    /// Chunk after chunk in alternating directions, so that neighbouring chunks
    /// meet on one device: with p = 2 and v = 2, stages 0 and 3 on device 0.
    Vee,
}

impl Placement {
    /// Returns the device of `stage` among `devices` devices.
    pub fn device(self, stage: StageId, devices: usize) -> DeviceId {
        let (chunk, rank) = (stage.index() / devices, stage.index() % devices);
        match self {
            Self::Vee if chunk % 2 == 1 => DeviceId(devices - 1 - rank),
            _ => DeviceId(rank),
        }
    }

    /// Returns the stage that is chunk number `chunk` of `device`.
    pub fn stage(self, chunk: usize, device: DeviceId, devices: usize) -> StageId {
        let rank = match self {
            Self::Vee if chunk % 2 == 1 => devices - 1 - device.index(),
            _ => device.index(),
        };
        StageId(chunk * devices + rank)
    }

    /// Returns the device of every stage of `shape`.
    pub fn devices(self, shape: Shape) -> Vec<DeviceId> {
        (0..shape.stages())
            .map(|stage| self.device(StageId(stage), shape.devices))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_and_vee_are_as_drawn() {
        let shape = Shape::new(3, 1).with_chunks(2);
        let numbers = |p: Placement| p.devices(shape).iter().map(|d| d.0).collect::<Vec<_>>();
        assert_eq!(numbers(Placement::Loop), [0, 1, 2, 0, 1, 2]);
        assert_eq!(numbers(Placement::Vee), [0, 1, 2, 2, 1, 0]);
    }

    #[test]
    fn stage_and_device_are_inverse() {
        for placement in [Placement::Loop, Placement::Vee] {
            for stage in 0..20 {
                let device = placement.device(StageId(stage), 5);
                assert_eq!(placement.stage(stage / 5, device, 5), StageId(stage));
            }
        }
    }
}
