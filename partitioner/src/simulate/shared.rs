//! Devices that are threads of one CPU with fewer cores than they are.
//!
//! Those that work at the same time get an equal part of the cores each (processor
//! sharing, which is what a fair scheduler of an operating system comes to). How long an
//! action takes then depends on what the others do meanwhile, so that time goes from one
//! event to the next: an action ends, or a value arrives.

use super::arrivals::Arrivals;
use crate::check::CheckedSchedule;
use crate::cores::Cores;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::Action;
use crate::timeline::{Span, Timeline};
use crate::units::Micros;
use crate::walk::Progress;

/// The action that a device does.
struct Working {
    action: Action,
    start: Micros,
    /// What is left of it, in microseconds of a device that works alone.
    left: f64,
}

#[derive(Default)]
struct Device {
    /// Actions begun.
    begun: usize,
    now: Option<Working>,
    /// The first of an overlapped pair, whose result leaves with the second's.
    held: Option<Action>,
    spans: Vec<Span>,
}

struct Run<'a, D> {
    schedule: &'a CheckedSchedule,
    cores: Cores,
    duration: D,
    time: f64,
    devices: Vec<Device>,
    progress: Progress<'a>,
    arrivals: Arrivals<'a>,
}

/// When each device does what, `duration` being how long an action takes alone.
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
        cores,
        duration,
        time: 0.0,
        devices: (0..devices).map(|_| Device::default()).collect(),
        progress: Progress::new(schedule.schedule()),
        arrivals: Arrivals::new(schedule, costs),
    };
    // A checked schedule goes on until every action has been done.
    while run.next_event() {}
    let spans = run.devices.into_iter().flat_map(|device| device.spans);
    Timeline::new(devices, spans.collect())
}

impl<D: Fn(Action) -> Micros> Run<'_, D> {
    /// Lets time go on until something ends or arrives; `false`: nothing is left.
    fn next_event(&mut self) -> bool {
        let waits = self.begin();
        let working = self.devices.iter().filter(|device| device.now.is_some());
        let share = self.cores.share(working.clone().count());
        let ends = working.filter_map(|device| device.now.as_ref());
        let ends = ends.map(|working| self.time + working.left / share);
        let Some(next) = ends.chain(waits).min_by(f64::total_cmp) else {
            return false;
        };
        for device in 0..self.devices.len() {
            let Some(working) = &mut self.devices[device].now else {
                continue;
            };
            if self.time + working.left / share <= next {
                self.end(device, next);
            } else {
                working.left -= (next - self.time) * share;
            }
        }
        self.time = next;
        true
    }

    /// Begins what can begin now; when the first value arrives that a device waits for
    /// although it has been sent.
    fn begin(&mut self) -> Option<f64> {
        let plan = self.schedule.schedule();
        let mut first: Option<f64> = None;
        for (index, device) in self.devices.iter_mut().enumerate() {
            let id = DeviceId(index);
            let next = plan.actions(id).get(device.begun).copied();
            let Some(action) = next.filter(|_| device.now.is_none()) else {
                continue;
            };
            let partner = plan.partner(id, device.begun);
            let both = [Some(action), partner].into_iter().flatten();
            if !both.clone().all(|one| self.progress.ready(one)) {
                continue;
            }
            let ready = both.map(|one| self.arrivals.ready(one)).max();
            let ready = ready.map_or(0.0, Micros::get);
            if ready > self.time {
                first = Some(first.map_or(ready, |first| first.min(ready)));
                continue;
            }
            device.begun += 1;
            device.held = device.held.or(partner.map(|_| action));
            device.now = Some(Working {
                action,
                start: Micros::saturating(self.time),
                left: (self.duration)(action).get(),
            });
        }
        first
    }

    fn end(&mut self, index: usize, time: f64) {
        let (id, end) = (DeviceId(index), Micros::saturating(time));
        let device = &mut self.devices[index];
        let Some(Working { action, start, .. }) = device.now.take() else {
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
