//! Devices that are threads of one CPU with too few cores.
//!
//! They take turns: an action keeps its core to its end, and among waiting actions the most urgent
//! goes first. So the time of an action depends on the other devices, and the simulation goes from
//! one end of an action to the next.
//!
//! A device gets its core at the moment in which its last input is sent, as in the engine, and
//! waits for the input there. This also holds if devices of one machine are in several processes;
//! the first value for a process that has not started yet leaves when it has
//! ([`Costs::with_joins`]).

use std::cmp::Reverse;

use super::arrivals::Arrivals;
use super::exchange;
use crate::check::CheckedSchedule;
use crate::cores::Cores;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::Action;
use crate::timeline::{Span, Timeline};
use crate::units::Micros;
use crate::urgency::urgencies;
use crate::walk::Progress;

/// The action that a device runs.
struct Running {
    action: Action,
    start: Micros,
    end: f64,
}

#[derive(Default)]
struct DeviceState {
    /// Number of actions begun.
    begun: usize,
    now: Option<Running>,
    /// The first of an overlapped pair, whose output leaves with the second's.
    held: Option<Action>,
    spans: Vec<Span>,
}

struct Run<'a, D> {
    schedule: &'a CheckedSchedule,
    at_once: usize,
    /// By device and index in its list.
    urgencies: Vec<Vec<u32>>,
    duration: D,
    time: f64,
    devices: Vec<DeviceState>,
    progress: Progress<'a>,
    arrivals: Arrivals<'a>,
}

/// Returns the times of each device's actions.
///
/// # Complexity
/// Actions times devices.
pub(super) fn timeline<D: Fn(Action) -> Micros>(
    schedule: &CheckedSchedule,
    costs: &Costs,
    cores: Cores,
    duration: D,
) -> Timeline {
    let devices = schedule.schedule().devices();
    let mut run = Run {
        schedule,
        at_once: cores.at_once(),
        urgencies: urgencies(schedule),
        duration,
        time: 0.0,
        devices: (0..devices).map(|_| DeviceState::default()).collect(),
        progress: Progress::new(schedule.schedule()),
        arrivals: Arrivals::new(schedule, costs),
    };
    // A checked schedule continues until every action is done.
    while run.next_event() {}
    let spans = run.devices.into_iter().flat_map(|device| device.spans);
    let spans: Vec<Span> = spans.collect();
    let ports = run.arrivals.into_ports();
    let exchanges = exchange::exchanges(schedule, costs, &spans, ports);
    Timeline::with_exchanges(devices, spans, exchanges)
}

impl<D: Fn(Action) -> Micros> Run<'_, D> {
    /// Advances time until an action ends; `false` if nothing is left.
    fn next_event(&mut self) -> bool {
        self.begin();
        let working = self.devices.iter().filter_map(|device| device.now.as_ref());
        let ends = working.map(|working| working.end);
        let Some(next) = ends.min_by(f64::total_cmp) else {
            return false;
        };
        self.time = next;
        for device in 0..self.devices.len() {
            let now = self.devices[device].now.as_ref();
            if now.is_some_and(|working| working.end <= next) {
                self.end(device, next);
            }
        }
        true
    }

    /// Begins the actions that can begin now, the most urgent first.
    fn begin(&mut self) {
        let mut can = Vec::new();
        let mut free = self.at_once;
        for device in 0..self.devices.len() {
            if self.devices[device].now.is_some() {
                free = free.saturating_sub(1);
            } else if let Some(ready) = self.arrival(device) {
                can.push((device, ready));
            }
        }
        let urgency = |device: usize| self.urgencies[device][self.devices[device].begun];
        can.sort_by_key(|&(device, _)| Reverse(urgency(device)));
        can.truncate(free);
        for (device, ready) in can {
            self.start(device, ready);
        }
    }

    /// Returns when the device has all inputs of its next action; none until they are sent.
    fn arrival(&self, index: usize) -> Option<f64> {
        let (plan, id) = (self.schedule.schedule(), DeviceId(index));
        let begun = self.devices[index].begun;
        let action = plan.actions(id).get(begun).copied()?;
        let both = [Some(action), plan.partner(id, begun)]
            .into_iter()
            .flatten();
        if !both.clone().all(|one| self.progress.ready(one)) {
            return None;
        }
        let ready = both.map(|one| self.arrivals.ready(one)).max();
        Some(ready.map_or(0.0, Micros::get))
    }

    fn start(&mut self, index: usize, ready: f64) {
        let (plan, id) = (self.schedule.schedule(), DeviceId(index));
        let device = &mut self.devices[index];
        let Some(&action) = plan.actions(id).get(device.begun) else {
            return;
        };
        let partner = plan.partner(id, device.begun);
        device.begun += 1;
        device.held = device.held.or(partner.map(|_| action));
        let start = self.time.max(ready);
        device.now = Some(Running {
            action,
            start: Micros::saturating(start),
            end: start + (self.duration)(action).get(),
        });
    }

    fn end(&mut self, index: usize, time: f64) {
        let (id, end) = (DeviceId(index), Micros::saturating(time));
        let device = &mut self.devices[index];
        let Some(Running { action, start, .. }) = device.now.take() else {
            return;
        };
        device.spans.push(Span {
            device: id,
            action,
            start,
            end,
        });
        if device.held == Some(action) {
            return;
        }
        for action in [device.held.take(), Some(action)].into_iter().flatten() {
            self.progress.finish(action);
            self.arrivals.send(id, action, end);
        }
    }
}
