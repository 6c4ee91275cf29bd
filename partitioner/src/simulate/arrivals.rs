//! Arrival times of values.

use super::ports::Ports;
use crate::check::CheckedSchedule;
use crate::cost::{Costs, EdgeTimes};
use crate::ids::{DeviceId, StageId};
use crate::schedule::{Action, ActionKind};
use crate::units::Micros;

/// Values between stages, with the links that they occupy.
pub(crate) struct Arrivals<'a> {
    schedule: &'a CheckedSchedule,
    /// None if transfers take no time.
    costs: Option<&'a Costs>,
    /// Arrival of the input of (stage, micro-batch).
    input: Vec<Micros>,
    /// Arrival of the gradient of the output of (stage, micro-batch).
    gradient: Vec<Micros>,
    /// By device: when its link to each device that it has sent to is free. There are few of them.
    links: Vec<Vec<(DeviceId, Micros)>>,
    /// Shared network cards, for values that use them instead.
    ports: Option<Ports<'a>>,
}

impl<'a> Arrivals<'a> {
    /// Starts without any values sent; transfers take the times of the edges of `costs`.
    pub(crate) fn new(schedule: &'a CheckedSchedule, costs: &'a Costs) -> Self {
        Self {
            costs: Some(costs),
            ports: costs.cards().map(Ports::new),
            ..Self::at_once(schedule)
        }
    }

    /// Starts without any values sent; transfers take no time.
    pub(crate) fn at_once(schedule: &'a CheckedSchedule) -> Self {
        let plan = schedule.schedule();
        let cells = plan.stages() * plan.micro_batches();
        Self {
            schedule,
            costs: None,
            input: vec![Micros::ZERO; cells],
            gradient: vec![Micros::ZERO; cells],
            links: vec![Vec::new(); plan.devices()],
            ports: None,
        }
    }

    fn cell(&self, stage: StageId, action: Action) -> usize {
        stage.index() * self.schedule.schedule().micro_batches() + action.micro.index()
    }

    /// Returns when the inputs of `action` from other stages arrive.
    pub(crate) fn ready(&self, action: Action) -> Micros {
        let cell = self.cell(action.stage, action);
        match action.kind {
            ActionKind::Forward => self.input[cell],
            ActionKind::Backward | ActionKind::BackwardInput => self.gradient[cell],
            ActionKind::BackwardWeight | ActionKind::Recompute => Micros::ZERO,
        }
    }

    /// Sends the output of `action`, made at `end`, if another stage waits for it. The actions of a
    /// device must be sent in their order, and, if devices share cards, those of all devices in the
    /// order of time.
    pub(crate) fn send(&mut self, device: DeviceId, action: Action, end: Micros) {
        let stage = action.stage.index();
        match action.kind {
            ActionKind::Forward if stage + 1 < self.schedule.schedule().stages() => {
                let to = StageId(stage + 1);
                let cell = self.cell(to, action);
                self.input[cell] = self.transfer(device, to, action.stage, end);
            }
            ActionKind::Backward | ActionKind::BackwardInput if stage > 0 => {
                let to = StageId(stage - 1);
                let cell = self.cell(to, action);
                self.gradient[cell] = self.transfer(device, to, to, end);
            }
            _ => {}
        }
    }

    /// Returns when a value made at `end` on `device` arrives at stage `to`.
    fn transfer(&mut self, device: DeviceId, to: StageId, edge: StageId, end: Micros) -> Micros {
        let target = self.schedule.device_of(to);
        if target == device {
            return end;
        }
        let times = self
            .costs
            .map_or(EdgeTimes::default(), |costs| costs.edge(edge));
        let end = end.max(self.taken_from(device, target, times.latency));
        if times.occupancy == Micros::ZERO {
            return end + times.latency;
        }
        if let Some(ports) = &mut self.ports
            && ports.between(device, target)
        {
            return ports.carry((device, target), end, times.occupancy) + times.latency;
        }
        let free = self.link(device, target);
        *free = end.max(*free) + times.occupancy;
        *free + times.latency
    }

    fn link(&mut self, from: DeviceId, to: DeviceId) -> &mut Micros {
        let links = &mut self.links[from.index()];
        let place = links.iter().position(|(own, _)| *own == to);
        let place = place.unwrap_or_else(|| {
            links.push((to, Micros::ZERO));
            links.len() - 1
        });
        &mut links[place].1
    }

    /// Returns when one process knows that another takes values: the announcement of its start is a
    /// message, too.
    fn taken_from(&self, from: DeviceId, to: DeviceId, latency: Micros) -> Micros {
        let joins = |device| self.costs.and_then(|costs| costs.joins(device));
        match (joins(from), joins(to)) {
            (Some(from), Some(to)) if from.process != to.process => to.after + latency,
            _ => Micros::ZERO,
        }
    }

    /// Returns the cards, with their traffic.
    pub(super) fn into_ports(self) -> Option<Ports<'a>> {
        self.ports
    }
}
