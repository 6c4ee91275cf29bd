//! Numbering of a device's stages as chunks.

use crate::ids::{DeviceId, StageId};
use crate::timeline::Timeline;
use std::collections::BTreeSet;

/// Stages of each device, the lowest first: that is chunk 0 of the device.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    stages: Vec<Vec<StageId>>,
}

impl Chunks {
    /// Collects the stages of a timeline's actions.
    ///
    /// # Complexity
    /// Linear in the number of spans, times the logarithm of the chunks.
    pub(super) fn new(timeline: &Timeline) -> Self {
        let on = |device| {
            let spans = timeline.spans_on(DeviceId(device)).iter();
            let stages: BTreeSet<StageId> = spans.map(|span| span.action.stage).collect();
            stages.into_iter().collect()
        };
        Self {
            stages: (0..timeline.devices()).map(on).collect(),
        }
    }

    /// Largest number of chunks of a device; 0 without actions.
    pub(super) fn count(&self) -> usize {
        self.stages.iter().map(Vec::len).max().unwrap_or_default()
    }

    /// Whether no device has actions of two stages.
    pub(super) fn one_each(&self) -> bool {
        self.count() <= 1
    }

    /// The stages of `device`, the lowest first.
    pub(super) fn of(&self, device: DeviceId) -> &[StageId] {
        self.stages.get(device.index()).map_or(&[], Vec::as_slice)
    }

    /// Number of the chunk that the stage is on `device`; 0 if the device does not have it.
    pub(super) fn chunk(&self, device: DeviceId, stage: StageId) -> usize {
        self.of(device).binary_search(&stage).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::ScheduleKind;
    use crate::cost::Costs;
    use crate::schedule::Shape;
    use crate::simulate::simulate;
    use crate::units::Micros;

    #[test]
    fn a_v_gives_its_first_device_the_first_and_the_last_stage() {
        let unit = Micros::new(1.0).unwrap();
        let shape = Shape::new(3, 6).with_chunks(2);
        let schedule = ScheduleKind::Zbv.generate(shape).unwrap();
        let timeline = simulate(&schedule, &Costs::uniform(6, unit, unit, unit)).timeline;
        let chunks = Chunks::new(&timeline);
        assert_eq!(chunks.count(), 2);
        assert_eq!(chunks.of(DeviceId(0)), [StageId(0), StageId(5)]);
        assert_eq!(chunks.of(DeviceId(2)), [StageId(2), StageId(3)]);
        assert_eq!(chunks.chunk(DeviceId(0), StageId(5)), 1);
        assert_eq!(chunks.chunk(DeviceId(2), StageId(2)), 0);
        assert_eq!(Chunks::new(&Timeline::new(2, vec![])).count(), 0);
    }
}
