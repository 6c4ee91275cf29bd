//! Times of devices, links and hosts during a simulation.

use super::arrivals::Arrivals;
use super::host::{HostThreads, Submitted};
use super::offload::OffloadLinks;
use super::ports::Ports;
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::Action;
use crate::units::Micros;

/// State of a simulation; `duration` returns the time of an action.
pub(super) struct Clock<'a, D> {
    schedule: &'a CheckedSchedule,
    /// Time at which each device is free.
    free: Vec<Micros>,
    arrivals: Arrivals<'a>,
    duration: D,
    /// By device: the first of an overlapped pair, whose output leaves with the second's.
    held: Vec<Option<Action>>,
    hosts: Option<HostThreads<'a>>,
    offload: Option<OffloadLinks<'a>>,
}

impl<'a, D: Fn(Action) -> Micros> Clock<'a, D> {
    pub(super) fn new(schedule: &'a CheckedSchedule, costs: &'a Costs, duration: D) -> Self {
        Self {
            hosts: (costs.has_host()).then(|| HostThreads::new(schedule, costs)),
            offload: (costs.has_offload(!schedule.schedule().offloads().is_empty()))
                .then(|| OffloadLinks::new(schedule, costs)),
            ..Self::of_devices(schedule, costs, duration)
        }
    }

    /// Creates a clock of the devices and the links between them only.
    pub(super) fn of_devices(schedule: &'a CheckedSchedule, costs: &'a Costs, duration: D) -> Self {
        Self {
            schedule,
            free: (0..schedule.schedule().devices())
                .map(|device| costs.joins(DeviceId(device)))
                .map(|joins| joins.map_or(Micros::ZERO, |joins| joins.after))
                .collect(),
            arrivals: Arrivals::new(schedule, costs),
            duration,
            held: vec![None; schedule.schedule().devices()],
            hosts: None,
            offload: None,
        }
    }

    /// Returns start and end of the `action` at `position` of its device's list, all of whose
    /// predecessors have run. With a partner it also waits for the partner's input.
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
        (start, end)
    }

    /// Sends the output of the `action` at `position`, which ended at `end`; the first of a pair
    /// waits for its partner. *Returns* the actions whose outputs are now in transfer.
    pub(super) fn send(
        &mut self,
        device: DeviceId,
        position: usize,
        (action, end): (Action, Micros),
    ) -> impl Iterator<Item = Action> + use<D> {
        let held = &mut self.held[device.index()];
        let partner = self.schedule.schedule().partner(device, position);
        let gone = if partner.is_some() {
            *held = Some(action);
            [None, None]
        } else {
            [held.take(), Some(action)]
        };
        for action in gone.into_iter().flatten() {
            self.arrivals.send(device, action, end);
        }
        gone.into_iter().flatten()
    }

    /// Returns the cards that devices share, with their traffic.
    pub(super) fn into_ports(self) -> Option<Ports<'a>> {
        self.arrivals.into_ports()
    }
}
