//! Predicts the times of each device's actions.
//!
//! A device runs its list in order; an action starts when the device is free and its inputs have
//! arrived. A value for another device occupies the directed link between the two for the edge's
//! occupancy, waits while the link is occupied, and arrives the edge's latency later. Values on a
//! link all come from one device, which runs one action at a time: the link serves them in the
//! order of production, and the simulation needs no event queue. Only if devices share cores does
//! it go from event to event: see the module `shared`.
//!
//! An asynchronous device starts no action before its host thread has submitted it (module `host`),
//! and offloads use the device's links to the host (module `offload`). Both can make an action
//! longer than its work: as in a measured timeline, an action lasts from when its stream reaches it
//! until its last kernel ends.
//!
//! Between nodes whose devices share a network card, values of several devices wait for each other
//! (module `ports`), and the simulation goes from one end of an action to the next (module
//! `by_time`). Replicas run simultaneously, so one of them is simulated; each stage's gradients are
//! all-reduced when they are complete (module `exchange`).
//!
//! Several processes begin a step one after the other, as the message that ends the previous one
//! reaches them ([`Costs::with_joins`]), and take no value sooner.

mod arrivals;
mod by_time;
mod clock;
mod critical;
mod exchange;
mod host;
mod jitter;
mod memory;
mod offload;
mod ports;
mod program;
mod sensitivity;
mod shared_cores;
mod summary;

pub(crate) use arrivals::Arrivals;
pub use critical::{CriticalPath, CriticalStep};
pub use jitter::{Jitter, JitteredSteps};
pub use memory::MemoryLevel;
pub(crate) use memory::change;
pub(crate) use program::Program;
pub use sensitivity::{Sensitivity, SensitivityTarget};
pub(crate) use summary::{Summary, summary};

use std::borrow::Cow;

use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::{Action, ActionKind};
use crate::timeline::{Span, Timeline};
use crate::units::{Bytes, Micros};
use crate::walk::walk;
use clock::Clock;

/// Prediction for a schedule.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// Times of each device's actions.
    pub timeline: Timeline,
    schedule: CheckedSchedule,
    costs: Costs,
}

/// Simulates `schedule` with `costs`. A stage or edge that the costs do not have takes no time. If
/// devices share too few cores ([`Costs::with_cores`]), they take turns, the most urgent first;
/// such devices are CPUs, without submission by a host.
///
/// # Complexity
/// Linear in the number of actions; with too few cores, times the number of devices.
pub fn simulate(schedule: &CheckedSchedule, costs: &Costs) -> Simulation {
    Simulation {
        timeline: timeline_of(schedule, costs, |action| {
            costs.stage(action.stage).of(action.kind)
        }),
        schedule: schedule.clone(),
        costs: costs.clone(),
    }
}

/// Returns the makespan of a simulation, in less time and memory than all of it takes.
///
/// # Complexity
/// That of [`simulate`].
pub fn makespan(schedule: &CheckedSchedule, costs: &Costs) -> Micros {
    let plan = schedule.schedule();
    let shares = (costs.cores()).is_some_and(|cores| !cores.suffice(plan.devices()));
    if shares || costs.cards().is_some() || costs.has_exchange() {
        return simulate(schedule, costs).makespan();
    }
    let duration = |action: Action| costs.stage(action.stage).of(action.kind);
    let mut clock = Clock::new(schedule, costs, duration);
    let (mut first, mut last) = (Micros::saturating(f64::MAX), Micros::ZERO);
    // Cannot fail: a checked schedule was already walked to its end.
    let _ = walk(plan, schedule.owner(), |device, position, action| {
        let (start, end) = clock.run(device, position, action);
        clock.send(device, position, (action, end)).for_each(drop);
        (first, last) = (first.min(start), last.max(end));
    });
    last - first
}

/// Returns the timeline with all of `costs` except the times of actions.
fn timeline_of(
    schedule: &CheckedSchedule,
    costs: &Costs,
    duration: impl Fn(Action) -> Micros,
) -> Timeline {
    let devices = schedule.schedule().devices();
    match costs.cores().filter(|cores| !cores.suffice(devices)) {
        Some(cores) => shared_cores::timeline(schedule, costs, cores, duration),
        None => timeline(schedule, costs, Clock::new(schedule, costs, duration)),
    }
}

/// Simulates with a duration for each single action, such as those of a measured run; of `costs`
/// only the transfers count: sharing of cores and waits for the host are part of the durations.
///
/// # Complexity
/// Linear in the number of actions.
///
/// # Examples
/// ```
/// use gpipe_partitioner::{Costs, Micros, ScheduleKind, Shape, simulate};
/// let schedule = ScheduleKind::GPipe.generate(Shape::new(2, 2))?;
/// let unit = Micros::new(1.0)?;
/// // The very first action takes three times as long as all others.
/// let first = "0F0".parse()?;
/// let timeline = simulate::replay(&schedule, &Costs::default(), |action| {
///     if action == first { unit * 3.0 } else { unit }
/// });
/// assert_eq!(timeline.makespan(), unit * 8.0);
/// # Ok::<(), gpipe_partitioner::Error>(())
/// ```
pub fn replay(
    schedule: &CheckedSchedule,
    costs: &Costs,
    duration: impl Fn(Action) -> Micros,
) -> Timeline {
    let clock = Clock::of_devices(schedule, costs, duration);
    timeline(schedule, costs, clock)
}

fn timeline(
    schedule: &CheckedSchedule,
    costs: &Costs,
    mut clock: Clock<'_, impl Fn(Action) -> Micros>,
) -> Timeline {
    let spans = match costs.cards() {
        Some(_) => by_time::spans(schedule, &mut clock),
        None => in_any_order(schedule, &mut clock),
    };
    let exchanges = exchange::exchanges(schedule, costs, &spans, clock.into_ports());
    Timeline::with_exchanges(schedule.schedule().devices(), spans, exchanges)
}

/// Returns the spans of all devices, if values of different devices do not meet on a link.
fn in_any_order(
    schedule: &CheckedSchedule,
    clock: &mut Clock<'_, impl Fn(Action) -> Micros>,
) -> Vec<Span> {
    let plan = schedule.schedule();
    let mut offset = 0;
    let offsets = plan.iter().map(|(_, list)| {
        offset += list.len();
        offset - list.len()
    });
    let offsets: Vec<usize> = offsets.collect();
    let nothing = Span {
        device: DeviceId(0),
        action: Action::new(0, ActionKind::Forward, 0),
        start: Micros::ZERO,
        end: Micros::ZERO,
    };
    let mut spans = vec![nothing; offset];
    // Cannot fail: a checked schedule was already walked to its end.
    let _ = walk(plan, schedule.owner(), |device, position, action| {
        let (start, end) = clock.run(device, position, action);
        clock.send(device, position, (action, end)).for_each(drop);
        spans[offsets[device.index()] + position] = Span {
            device,
            action,
            start,
            end,
        };
    });
    spans
}

/// Returns the memory of `device` over a timeline of `schedule`, such as a measured one, with the
/// bytes of `costs`: each change of its level, from time 0 on.
///
/// # Complexity
/// Linear in the number of the device's actions.
pub fn memory_over(
    schedule: &CheckedSchedule,
    costs: &Costs,
    timeline: &Timeline,
    device: DeviceId,
) -> Vec<MemoryLevel> {
    let spans = |device| Cow::Borrowed(timeline.spans_on(device));
    memory::levels(schedule, costs, &spans, device)
}

impl Simulation {
    /// From the first start to the last end over all devices.
    pub fn makespan(&self) -> Micros {
        self.timeline.makespan()
    }

    /// Returns the idle time of each device.
    pub fn idle(&self) -> Vec<Micros> {
        (0..self.timeline.devices())
            .map(|device| self.timeline.idle(DeviceId(device)))
            .collect()
    }

    /// The schedule that was simulated.
    pub fn schedule(&self) -> &CheckedSchedule {
        &self.schedule
    }

    /// The costs that it was simulated with.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Returns the memory of `device` over time: each change of its level, from time 0 on.
    ///
    /// # Complexity
    /// Linear in the number of the device's actions.
    pub fn memory(&self, device: DeviceId) -> Vec<MemoryLevel> {
        memory_over(&self.schedule, &self.costs, &self.timeline, device)
    }

    /// Returns the peak of each device's memory.
    pub fn peak_bytes(&self) -> Vec<Bytes> {
        let peak = |device| {
            self.memory(DeviceId(device))
                .iter()
                .map(|level| level.bytes)
                .max()
        };
        (0..self.timeline.devices())
            .map(|device| peak(device).unwrap_or_default())
            .collect()
    }

    /// Returns the peak of each stage's memory, independent of other stages on its device.
    ///
    /// # Complexity
    /// Linear in the number of actions.
    pub fn stage_peak_bytes(&self) -> Vec<Bytes> {
        memory::stage_peaks(&self.schedule, &self.costs)
    }

    /// Returns the chain of actions and waits without slack that determines the makespan.
    ///
    /// # Complexity
    /// Linear in the number of actions.
    pub fn critical_path(&self) -> CriticalPath {
        critical::path(&self.schedule, &self.timeline)
    }
}

#[cfg(test)]
mod tests;
