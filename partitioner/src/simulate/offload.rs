//! Transfer of offloaded activations to the host's memory and back.
//!
//! With links that take as long as a forward, and a backward twice as long (GPipe, m = 3, one
//! device), where the first backward waits:
//! ```text
//! device     0F0 0F1 0F2 0B0 0B0 0B0 0B1 0B1 0B2 0B2
//! to host         0   1   2
//! to device               0   1       2
//! ```
//! A forward's activations are sent while it runs, part by part, and after it. They are released at
//! the end of the next action: there the device waits if the link is slower. They come back from
//! the start of the action before the consuming one, but only after all sends have arrived; the
//! consuming action waits for them.

use crate::check::CheckedSchedule;
use crate::cost::{Costs, OffloadTimes};
use crate::ids::DeviceId;
use crate::schedule::{OffloadMove, Schedule};
use crate::units::Micros;

pub(super) struct OffloadLinks<'a> {
    schedule: &'a Schedule,
    costs: &'a Costs,
    devices: Vec<HostLinks>,
}

/// The two links between a device and the host.
struct HostLinks {
    moves: Vec<OffloadMove>,
    /// Times at which each link is free.
    to_host: Micros,
    to_device: Micros,
    /// Time at which all sent activations are on the host.
    arrived: Micros,
    /// Same as `arrived`, for the activations of the previous action.
    leaving: Micros,
    /// Time at which the activations for the next action are back.
    back: Micros,
}

impl<'a> OffloadLinks<'a> {
    pub(super) fn new(schedule: &'a CheckedSchedule, costs: &'a Costs) -> Self {
        let links = |device| HostLinks {
            moves: schedule.schedule().offload_moves(DeviceId(device)),
            to_host: Micros::ZERO,
            to_device: Micros::ZERO,
            arrived: Micros::ZERO,
            leaving: Micros::ZERO,
            back: Micros::ZERO,
        };
        Self {
            schedule: schedule.schedule(),
            costs,
            devices: (0..schedule.schedule().devices()).map(links).collect(),
        }
    }

    /// Begins the action at `position`, with all before it done at `free`; returns when the
    /// action's activations are back.
    pub(super) fn begin(&mut self, device: DeviceId, position: usize, free: Micros) -> Micros {
        let links = &mut self.devices[device.index()];
        let back = std::mem::take(&mut links.back);
        if let Some((stage, _)) = links.moves[position].prefetched {
            let times = self.costs.offload_under(self.schedule, stage).to_device;
            links.to_device = (links.to_device.max(free)).max(links.arrived) + times.occupancy;
            links.back = links.to_device + times.latency;
        }
        back
    }

    /// Ends the action at `position`, run from `start` to `end`; returns when the device can go on.
    pub(super) fn end(
        &mut self,
        device: DeviceId,
        position: usize,
        (start, end): (Micros, Micros),
    ) -> Micros {
        let links = &mut self.devices[device.index()];
        let goes_on = std::mem::take(&mut links.leaving).max(end);
        // The next action releases the activations of this one.
        let next = links.moves.get(position + 1);
        if let Some((stage, _)) = next.and_then(|next| next.released) {
            links.leave(self.costs.offload_under(self.schedule, stage), (start, end));
        }
        goes_on
    }
}

impl HostLinks {
    /// Sends equal parts that are made one after the other from `start` to `end`: either the link
    /// waits for the last one, or it is never free after the first.
    fn leave(&mut self, times: OffloadTimes, (start, end): (Micros, Micros)) {
        let (way, part) = (times.to_host, 1.0 / f64::from(times.pieces.max(1)));
        if way.occupancy == Micros::ZERO && way.latency == Micros::ZERO {
            return;
        }
        let first = start + (end - start) * part;
        let queued = self.to_host.max(first) + way.occupancy;
        self.to_host = queued.max(end + way.occupancy * part);
        self.leaving = self.to_host + way.latency;
        self.arrived = self.leaving;
    }
}

#[cfg(test)]
mod tests {
    use crate::builtin::ScheduleKind;
    use crate::cost::{Costs, EdgeTimes, OffloadTimes};
    use crate::ids::{DeviceId, StageId};
    use crate::schedule::Shape;
    use crate::simulate::simulate;
    use crate::units::Micros;

    /// Returns starts and ends of GPipe with three micro-batches on one device, with 10 per forward
    /// and 20 per backward.
    fn spans(to_host: f64, to_device: f64, pieces: u32) -> Vec<(f64, f64)> {
        let micros = |time| Micros::new(time).unwrap();
        let way = |time| EdgeTimes {
            occupancy: micros(time),
            latency: Micros::ZERO,
        };
        let times = OffloadTimes {
            to_host: way(to_host),
            to_device: way(to_device),
            pieces,
        };
        let costs = Costs::from_stage_times(&[micros(10.0)], &[micros(20.0)]);
        let costs = costs.with_offload(StageId(0), times);
        let schedule = ScheduleKind::GPipe.generate(Shape::new(1, 3)).unwrap();
        let timeline = simulate(&schedule, &costs).timeline;
        let spans = timeline.spans_on(DeviceId(0)).iter();
        spans.map(|s| (s.start.get(), s.end.get())).collect()
    }

    #[test]
    fn a_fast_link_costs_nothing() {
        let expected = [
            (0.0, 10.0),
            (10.0, 20.0),
            (20.0, 30.0),
            (30.0, 50.0),
            (50.0, 70.0),
            (70.0, 90.0),
        ];
        assert_eq!(spans(0.0, 0.0, 1), expected);
        assert_eq!(spans(5.0, 5.0, 1), expected);
    }

    /// 0 leaves at 10, 1 at 20, 2 at 30, and each takes 10. 0 comes back from 30 on, when 1 has
    /// left: the first backward begins and waits for it until 40.
    #[test]
    fn what_comes_back_is_waited_for() {
        let found = spans(10.0, 10.0, 1);
        assert_eq!(found[3..], [(30.0, 60.0), (60.0, 80.0), (80.0, 100.0)]);
    }

    /// In two parts, of which the first leaves when half of the forward is done: 0 from 5 to 15, 1
    /// to 25, 2 to 35, and 0 comes back from 25 to 35.
    #[test]
    fn parts_leave_as_they_are_made() {
        let found = spans(10.0, 10.0, 2);
        assert_eq!(found[3..], [(30.0, 55.0), (55.0, 75.0), (75.0, 95.0)]);
    }

    /// To the host from 10 to 40, 40 to 70, 70 to 100. After each action the device waits for the
    /// offload of the previous one.
    #[test]
    fn a_slow_link_holds_forwards_up() {
        let expected = [
            (0.0, 10.0),
            (10.0, 20.0),
            (40.0, 50.0),
            (70.0, 100.0),
            (100.0, 130.0),
            (130.0, 150.0),
        ];
        assert_eq!(spans(30.0, 10.0, 1), expected);
    }
}
