//! When each device is free, and what it does next.

use super::arrivals::Arrivals;
use super::host::{HostThreads, Submitted};
use super::offload::OffloadLinks;
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::Action;
use crate::units::Micros;

/// `duration` says how long an action takes.
pub(super) struct Clock<'a, D> {
    schedule: &'a CheckedSchedule,
    /// When each device is free.
    free: Vec<Micros>,
    arrivals: Arrivals<'a>,
    duration: D,
    /// The first of an overlapped pair, whose result leaves with the second's.
    held: Option<Action>,
    hosts: Option<HostThreads<'a>>,
    offload: Option<OffloadLinks<'a>>,
}

impl<'a, D: Fn(Action) -> Micros> Clock<'a, D> {
    pub(super) fn new(schedule: &'a CheckedSchedule, costs: &'a Costs, duration: D) -> Self {
        Self {
            hosts: (costs.has_host()).then(|| HostThreads::new(schedule, costs)),
            offload: (costs.has_offload()).then(|| OffloadLinks::new(schedule, costs)),
            ..Self::of_devices(schedule, costs, duration)
        }
    }

    /// Of the devices and the links between them alone.
    pub(super) fn of_devices(schedule: &'a CheckedSchedule, costs: &'a Costs, duration: D) -> Self {
        Self {
            schedule,
            free: vec![Micros::ZERO; schedule.schedule().devices()],
            arrivals: Arrivals::new(schedule, costs),
            duration,
            held: None,
            hosts: None,
            offload: None,
        }
    }

    /// Start and end of the `action` at `position` of its device's list, all of whose
    /// predecessors have been run. With a partner it waits for the partner's input too, and
    /// its result leaves when the partner ends.
    pub(super) fn run(
        &mut self,
        device: DeviceId,
        position: usize,
        action: Action,
    ) -> (Micros, Micros) {
        let partner = self.schedule.schedule().partner(device, position);
        let of_partner = partner.map_or(Micros::ZERO, |other| self.arrivals.ready(other));
        let ready = self.arrivals.ready(action).max(of_partner);
        let free = self.free[device.index()];
        let hosts = self.hosts.as_mut();
        let Submitted { begin, end } = hosts.map_or(Submitted::default(), |hosts| {
            hosts.submit(device, action, partner)
        });
        let start = ready.max(free).max(begin);
        let mut works = start;
        if let Some(offload) = &mut self.offload {
            works = start.max(offload.begin(device, position, free.max(begin)));
        }
        // The kernels run as they are submitted.
        let end = (works + (self.duration)(action)).max(end);
        let mut free = end;
        if let Some(offload) = &mut self.offload {
            free = end.max(offload.end(device, position, (start, end)));
        }
        self.free[device.index()] = free;
        if partner.is_some() {
            // Its partner is run next.
            self.held = Some(action);
            return (start, end);
        }
        for action in [self.held.take(), Some(action)].into_iter().flatten() {
            self.arrivals.send(device, action, end);
        }
        (start, end)
    }
}
