//! A schedule prepared for simulations with many costs, of the step's length only.
//!
//! The order in which a simulation visits the actions, and the sources of their inputs, depend on the
//! schedule only. So they are found once, and each simulation is one pass over an array. It adds and
//! compares the same numbers in the same order as [`simulate`](super::simulate()), so its steps are
//! bit-identical.

use std::collections::HashMap;

use crate::check::CheckedSchedule;
use crate::cost::{Costs, StageTimes};
use crate::ids::{DeviceId, StageId};
use crate::schedule::{Action, ActionKind};
use crate::units::Micros;
use crate::walk::{unblocks, walk};

/// Cell of inputs that exist from the beginning.
const AT_ONCE: u32 = 0;
/// No cell, or no link.
const NONE: u32 = u32::MAX;

/// An action, and the destination of its result.
#[derive(Clone, Copy, Debug)]
struct Entry {
    device: u32,
    /// For a result that is only sent: one after the last stage, which takes no time.
    stage: u32,
    kind: ActionKind,
    /// Cell of its input or gradient, and that of its partner in a pair.
    needs: [u32; 2],
    way: Way,
}

/// Destination of a result.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Cell of the action that waits for it, if any.
    gives: u32,
    /// None on the same device.
    link: u32,
    /// The boundary that is crossed, by the stage before it.
    edge: u32,
}

const NOWHERE: Way = Way {
    gives: NONE,
    link: NONE,
    edge: 0,
};

/// A schedule in simulation order.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    entries: Vec<Entry>,
    devices: usize,
    stages: usize,
    cells: usize,
    links: usize,
    /// Whether the schedule lists its offloads.
    offloads_singly: bool,
}

/// A program under construction.
struct Writer<'a> {
    schedule: &'a CheckedSchedule,
    entries: Vec<Entry>,
    links: HashMap<(DeviceId, DeviceId), u32>,
    /// By device: destination of the result of the first of an overlapped pair.
    held: Vec<Option<Way>>,
}

impl Writer<'_> {
    /// Returns the cell of a stage's input, or of its gradient, from the neighbouring stage.
    fn cell(&self, stage: usize, action: Action) -> u32 {
        let plan = self.schedule.schedule();
        let half = plan.stages() * plan.micro_batches();
        let first = match action.kind {
            ActionKind::Forward => 1,
            _ => 1 + half,
        };
        (first + stage * plan.micro_batches() + action.micro.index()) as u32
    }

    fn needs(&self, action: Action) -> u32 {
        match action.kind {
            ActionKind::BackwardWeight | ActionKind::Recompute => AT_ONCE,
            _ => self.cell(action.stage.index(), action),
        }
    }

    fn way(&mut self, device: DeviceId, action: Action) -> Way {
        let Some(to) = unblocks(action, self.schedule.schedule().stages()) else {
            return NOWHERE;
        };
        let target = self.schedule.device_of(StageId(to));
        let next = self.links.len() as u32;
        let link = if target == device {
            NONE
        } else {
            *self.links.entry((device, target)).or_insert(next)
        };
        Way {
            gives: self.cell(to, action),
            link,
            edge: to.min(action.stage.index()) as u32,
        }
    }

    fn write(&mut self, device: DeviceId, position: usize, action: Action) {
        let plan = self.schedule.schedule();
        let partner = plan.partner(device, position);
        let also = partner.map_or(AT_ONCE, |other| self.needs(other));
        let mut entry = Entry {
            device: device.index() as u32,
            stage: action.stage.index() as u32,
            kind: action.kind,
            needs: [self.needs(action), also],
            way: NOWHERE,
        };
        let way = self.way(device, action);
        if partner.is_some() {
            self.held[device.index()] = Some(way);
            self.entries.push(entry);
        } else if let Some(held) = self.held[device.index()].take() {
            self.entries.push(entry);
            entry.stage = plan.stages() as u32;
            entry.needs = [AT_ONCE; 2];
            let sent = [held, way].map(|way| Entry { way, ..entry });
            self.entries.extend(sent);
        } else {
            self.entries.push(Entry { way, ..entry });
        }
    }
}

impl Program {
    /// # Complexity
    /// Linear in the number of actions.
    pub(crate) fn new(schedule: &CheckedSchedule) -> Self {
        let plan = schedule.schedule();
        let mut writer = Writer {
            schedule,
            entries: Vec::with_capacity(plan.iter().map(|(_, list)| list.len()).sum()),
            links: HashMap::new(),
            held: vec![None; plan.devices()],
        };
        // Cannot fail: a checked schedule was already walked to its end.
        let _ = walk(plan, schedule.owner(), |device, position, action| {
            writer.write(device, position, action);
        });
        Self {
            entries: writer.entries,
            devices: plan.devices(),
            stages: plan.stages(),
            cells: 1 + 2 * plan.stages() * plan.micro_batches(),
            links: writer.links.len(),
            offloads_singly: !plan.offloads().is_empty(),
        }
    }

    /// Returns the length of a step with `costs`; none if they have features not covered here: hosts,
    /// offload, shared cores or cards, processes, exchanges.
    ///
    /// # Complexity
    /// Linear in the number of actions.
    pub(crate) fn makespan(&self, costs: &Costs) -> Option<Micros> {
        let shares = costs
            .cores()
            .is_some_and(|cores| !cores.suffice(self.devices));
        let joins = (0..self.devices).any(|device| costs.joins(DeviceId(device)).is_some());
        let more =
            costs.has_host() || costs.has_offload(self.offloads_singly) || costs.has_exchange();
        if shares || joins || more || costs.cards().is_some() {
            return None;
        }
        let stages = (0..self.stages).map(StageId);
        let mut times: Vec<_> = stages.clone().map(|stage| costs.stage(stage)).collect();
        times.push(StageTimes::default());
        let edges: Vec<_> = stages.map(|stage| costs.edge(stage)).collect();
        let mut cells = vec![Micros::ZERO; self.cells];
        let mut free = vec![Micros::ZERO; self.devices];
        let mut links = vec![Micros::ZERO; self.links];
        for entry in &self.entries {
            let device = &mut free[entry.device as usize];
            let ready = entry.needs.map(|cell| cells[cell as usize]);
            let start = ready[0].max(ready[1]).max(*device);
            let end = start + times[entry.stage as usize].of(entry.kind);
            *device = end;
            let way = entry.way;
            if way.gives == NONE {
                continue;
            }
            cells[way.gives as usize] = if way.link == NONE {
                end
            } else {
                let edge = edges[way.edge as usize];
                if edge.occupancy == Micros::ZERO {
                    end + edge.latency
                } else {
                    let link = &mut links[way.link as usize];
                    *link = end.max(*link) + edge.occupancy;
                    *link + edge.latency
                }
            };
        }
        free.into_iter().max()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::builtin::ScheduleKind;
    use crate::cost::EdgeTimes;
    use crate::schedule::Shape;
    use crate::simulate::simulate;

    fn micros(number: f64) -> Micros {
        Micros::new(number).unwrap()
    }

    proptest! {
        #[test]
        fn steps_are_those_of_the_simulation_to_the_bit(
            kind in 0..ScheduleKind::ALL.len(),
            devices in 1_usize..6,
            micro in 1_usize..10,
            chunks in 1_usize..4,
            times in prop::collection::vec(prop::array::uniform4(0.0..1000.0), 24),
            edges in prop::collection::vec((0.0..100.0, 0.0..100.0, 0..3), 24),
        ) {
            let shape = Shape::new(devices, micro).with_chunks(chunks);
            let Ok(schedule) = ScheduleKind::ALL[kind].generate(shape) else {
                return Ok(());
            };
            let stage = |[forward, input, weight, backward]: [f64; 4]| StageTimes {
                forward: micros(forward),
                input: micros(input),
                weight: micros(weight),
                backward: micros(backward),
                recompute: micros(forward),
            };
            let mut costs = Costs::new(times.into_iter().map(stage).collect());
            for (stage, (occupancy, latency, free)) in edges.into_iter().enumerate() {
                let occupancy = if free == 0 { 0.0 } else { occupancy };
                let edge = EdgeTimes { occupancy: micros(occupancy), latency: micros(latency) };
                costs = costs.with_edge(StageId(stage), edge);
            }
            let own = Program::new(&schedule).makespan(&costs).unwrap();
            prop_assert_eq!(own, simulate(&schedule, &costs).makespan());
        }
    }
}
