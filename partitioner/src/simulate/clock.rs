//! When each device is free, and what it does next.

use super::arrivals::Arrivals;
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::Action;
use crate::units::Micros;

/// `duration` says how long an action takes.
pub(super) struct Clock<'a, D> {
    /// When each device is free.
    free: Vec<Micros>,
    arrivals: Arrivals<'a>,
    duration: D,
}

impl<'a, D: Fn(Action) -> Micros> Clock<'a, D> {
    pub(super) fn new(schedule: &'a CheckedSchedule, costs: &'a Costs, duration: D) -> Self {
        Self {
            free: vec![Micros::ZERO; schedule.schedule().devices()],
            arrivals: Arrivals::new(schedule, costs),
            duration,
        }
    }

    /// Start and end of `action`, all of whose predecessors have been run. With a
    /// partner it waits for the partner's input too, and its result leaves when
    /// the partner ends.
    pub(super) fn run(
        &mut self,
        device: DeviceId,
        action: Action,
        partner: Option<Action>,
    ) -> (Micros, Micros) {
        let of_partner = partner.map_or(Micros::ZERO, |other| self.arrivals.ready(other));
        let ready = self.arrivals.ready(action).max(of_partner);
        let start = ready.max(self.free[device.index()]);
        let end = start + (self.duration)(action);
        self.free[device.index()] = end;
        let leaves = end + partner.map_or(Micros::ZERO, &self.duration);
        self.arrivals.send(device, action, leaves);
        (start, end)
    }
}
