//! Predicts when each device does what.
//!
//! A device does its list in order; an action starts when the device is free and
//! what it needs has arrived. A value for another device occupies the directed
//! link between the two for the edge's occupancy, waits while the link is
//! occupied, and arrives the edge's latency later. Values on a link all come from
//! one device, which does one thing at a time: the link serves them in the order
//! in which they were produced, and the simulation needs no queue of events.

use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::{DeviceId, StageId};
use crate::schedule::{Action, Kind};
use crate::timeline::{Span, Timeline};
use crate::units::Micros;
use crate::walk::walk;
use std::collections::HashMap;

/// What a schedule is predicted to do.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// When each device does what.
    pub timeline: Timeline,
}

/// Runs `schedule` on paper with `costs`. A stage or edge that the costs do not
/// have takes no time.
///
/// # Complexity
/// Linear in the number of actions.
pub fn simulate(schedule: &CheckedSchedule, costs: &Costs) -> Simulation {
    let plan = schedule.schedule();
    let mut clock = Clock::new(schedule, costs);
    let mut spans: Vec<Vec<Span>> = plan
        .iter()
        .map(|(_, list)| Vec::with_capacity(list.len()))
        .collect();
    // A checked schedule has been walked to its end before.
    let _ = walk(plan, schedule.owner(), |device, position, action| {
        let (start, end) = clock.run(device, action, plan.partner(device, position));
        spans[device.index()].push(Span {
            device,
            action,
            start,
            end,
        });
    });
    Simulation {
        timeline: Timeline::new(plan.devices(), spans.into_iter().flatten().collect()),
    }
}

struct Clock<'a> {
    schedule: &'a CheckedSchedule,
    costs: &'a Costs,
    /// When each device is free.
    free: Vec<Micros>,
    /// When the input of (stage, micro-batch) is there.
    input: Vec<Micros>,
    /// When the gradient of the output of (stage, micro-batch) is there.
    gradient: Vec<Micros>,
    /// When each directed link between devices is free.
    links: HashMap<(DeviceId, DeviceId), Micros>,
}

impl<'a> Clock<'a> {
    fn new(schedule: &'a CheckedSchedule, costs: &'a Costs) -> Self {
        let plan = schedule.schedule();
        let cells = plan.stages() * plan.micro_batches();
        Self {
            schedule,
            costs,
            free: vec![Micros::ZERO; plan.devices()],
            input: vec![Micros::ZERO; cells],
            gradient: vec![Micros::ZERO; cells],
            links: HashMap::new(),
        }
    }

    fn cell(&self, stage: StageId, action: Action) -> usize {
        stage.index() * self.schedule.schedule().micro_batches() + action.micro.index()
    }

    /// When what `action` needs from other stages is there.
    fn ready(&self, action: Action) -> Micros {
        let cell = self.cell(action.stage, action);
        match action.kind {
            Kind::Forward => self.input[cell],
            Kind::Backward | Kind::BackwardInput => self.gradient[cell],
            Kind::BackwardWeight | Kind::Recompute => Micros::ZERO,
        }
    }

    fn duration(&self, action: Action) -> Micros {
        self.costs.stage(action.stage).of(action.kind)
    }

    /// Start and end of `action`, all of whose predecessors have been run. With a
    /// partner it waits for the partner's input too, and its result leaves when
    /// the partner ends.
    fn run(
        &mut self,
        device: DeviceId,
        action: Action,
        partner: Option<Action>,
    ) -> (Micros, Micros) {
        let ready = self
            .ready(action)
            .max(partner.map_or(Micros::ZERO, |other| self.ready(other)));
        let start = ready.max(self.free[device.index()]);
        let end = start + self.duration(action);
        self.free[device.index()] = end;
        let leaves = end + partner.map_or(Micros::ZERO, |other| self.duration(other));
        self.send(device, action, leaves);
        (start, end)
    }

    /// Sends on what `action` gave at `end`, if another stage waits for it.
    fn send(&mut self, device: DeviceId, action: Action, end: Micros) {
        let stage = action.stage.index();
        match action.kind {
            Kind::Forward if stage + 1 < self.schedule.schedule().stages() => {
                let to = StageId(stage + 1);
                let cell = self.cell(to, action);
                self.input[cell] = self.transfer(device, to, action.stage, end);
            }
            Kind::Backward | Kind::BackwardInput if stage > 0 => {
                let to = StageId(stage - 1);
                let cell = self.cell(to, action);
                self.gradient[cell] = self.transfer(device, to, to, end);
            }
            _ => {}
        }
    }

    /// When a value that is ready at `end` on `device` is at stage `to`.
    fn transfer(&mut self, device: DeviceId, to: StageId, edge: StageId, end: Micros) -> Micros {
        let target = self.schedule.device_of(to);
        if target == device {
            return end;
        }
        let times = self.costs.edge(edge);
        if times.occupancy == Micros::ZERO {
            return end + times.latency;
        }
        let free = self.links.entry((device, target)).or_default();
        *free = end.max(*free) + times.occupancy;
        *free + times.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{ScheduleKind, Shape};

    fn micros(value: f64) -> Micros {
        Micros::new(value).unwrap()
    }

    fn run(kind: ScheduleKind, p: usize, m: usize, costs: &Costs) -> Timeline {
        simulate(&kind.generate(Shape::new(p, m)).unwrap(), costs).timeline
    }

    #[test]
    fn gpipe_and_1f1b_have_the_bubble_of_their_papers() {
        for kind in [ScheduleKind::GPipe, ScheduleKind::OneFOneB] {
            for (p, m) in [(1, 1), (1, 5), (4, 1), (4, 3), (4, 9)] {
                let costs = Costs::uniform(p, micros(2.0), micros(3.0), micros(4.0));
                let makespan = run(kind, p, m, &costs).makespan();
                assert_eq!(makespan, micros(9.0 * (m + p - 1) as f64), "{kind} {p} {m}");
            }
        }
    }

    #[test]
    fn latency_delays_every_hop() {
        let costs = Costs::uniform(3, micros(1.0), micros(1.0), micros(1.0))
            .with_transfer(Micros::ZERO, micros(10.0));
        // Two hops there, two hops back.
        assert_eq!(
            run(ScheduleKind::GPipe, 3, 1, &costs).makespan(),
            micros(9.0 + 40.0)
        );
    }

    #[test]
    fn a_busy_link_queues() {
        let costs = Costs::uniform(2, micros(1.0), micros(1.0), micros(1.0))
            .with_transfer(micros(5.0), micros(2.0));
        let timeline = run(ScheduleKind::ForwardOnly, 2, 3, &costs);
        let starts: Vec<f64> = timeline
            .spans_on(DeviceId(1))
            .iter()
            .map(|s| s.start.get())
            .collect();
        // Ready at 1, 2, 3; the link takes 5 each, one after the other.
        assert_eq!(starts, [8.0, 13.0, 18.0]);
    }
}
