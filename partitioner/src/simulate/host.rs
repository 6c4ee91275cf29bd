//! Host threads that submit work to asynchronous devices.
//!
//! Each device has one, which goes through the device's list: it waits until the threads of other
//! devices have posted the inputs (which their devices may still have to compute), submits the
//! action's kernels, which takes its time, and posts the outputs.

use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::Action;
use crate::units::Micros;

use super::arrivals::Arrivals;

/// Times at which an action's first kernel and its last one are submitted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Submitted {
    pub(super) begin: Micros,
    pub(super) end: Micros,
}

pub(super) struct HostThreads<'a> {
    costs: &'a Costs,
    /// Time at which each device's thread is free.
    free: Vec<Micros>,
    /// Messages arrive as soon as they are posted.
    posted: Arrivals<'a>,
}

impl<'a> HostThreads<'a> {
    pub(super) fn new(schedule: &'a CheckedSchedule, costs: &'a Costs) -> Self {
        Self {
            costs,
            free: vec![Micros::ZERO; schedule.schedule().devices()],
            posted: Arrivals::at_once(schedule),
        }
    }

    /// Submits an action; `partner` is the second one of an overlapped pair, whose outputs are
    /// posted together.
    pub(super) fn submit(
        &mut self,
        device: DeviceId,
        action: Action,
        partner: Option<Action>,
    ) -> Submitted {
        let takes = |action: Action| self.costs.host(action.stage).of(action.kind);
        let of_partner = partner.map_or(Micros::ZERO, |other| self.posted.ready(other));
        let begin = (self.posted.ready(action).max(of_partner)).max(self.free[device.index()]);
        let end = begin + takes(action);
        let leaves = end + partner.map_or(Micros::ZERO, takes);
        self.free[device.index()] = end;
        self.posted.send(device, action, leaves);
        Submitted { begin, end }
    }
}

#[cfg(test)]
mod tests {
    use crate::builtin::ScheduleKind;
    use crate::cost::{Costs, StageTimes};
    use crate::ids::StageId;
    use crate::schedule::Shape;
    use crate::simulate::simulate;
    use crate::units::Micros;

    fn times(forward: f64, backward: f64) -> StageTimes {
        StageTimes {
            forward: Micros::new(forward).unwrap(),
            backward: Micros::new(backward).unwrap(),
            ..StageTimes::default()
        }
    }

    /// Returns GPipe's makespan for these times of forward and backward, of device and host.
    fn makespan(devices: usize, micro: usize, device: [f64; 2], host: [f64; 2]) -> f64 {
        let costs = Costs::new(vec![times(device[0], device[1]); devices]);
        let costs = (0..devices).fold(costs, |costs, stage| {
            costs.with_host(StageId(stage), times(host[0], host[1]))
        });
        let schedule = ScheduleKind::GPipe.generate(Shape::new(devices, micro));
        simulate(&schedule.unwrap(), &costs).makespan().get()
    }

    #[test]
    fn a_device_that_waits_for_its_host_takes_as_long_as_that() {
        assert_eq!(makespan(1, 2, [30.0, 60.0], [100.0, 150.0]), 500.0);
        // There and back, one host after the other.
        assert_eq!(makespan(2, 1, [10.0, 10.0], [50.0, 50.0]), 200.0);
    }

    /// The host is ahead from the second action on, and the device overlaps with its submission of
    /// the first.
    #[test]
    fn a_host_that_is_faster_than_its_device_costs_nothing() {
        let device = [100.0, 200.0];
        for (devices, micro) in [(1, 3), (2, 1), (3, 4)] {
            let without = makespan(devices, micro, device, [0.0, 0.0]);
            assert_eq!(makespan(devices, micro, device, [90.0, 190.0]), without);
        }
    }

    /// The first forward of 100 is submitted in 50; the second waits for nothing, and the
    /// backwards, which take the host longer, wait for the host only.
    #[test]
    fn a_host_that_is_ahead_falls_behind_where_actions_are_small() {
        // Host: F0 0-50, F1 50-100, B0 100-400, B1 400-700. Device: F0 0-100, F1 100-200,
        // B0 200-400, B1 400-700.
        assert_eq!(makespan(1, 2, [100.0, 10.0], [50.0, 300.0]), 700.0);
    }
}
