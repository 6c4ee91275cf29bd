//! Predicts when each device does what.
//!
//! A device does its list in order; an action starts when the device is free and
//! what it needs has arrived. A value for another device occupies the directed
//! link between the two for the edge's occupancy, waits while the link is
//! occupied, and arrives the edge's latency later. Values on a link all come from
//! one device, which does one thing at a time: the link serves them in the order
//! in which they were produced, and the simulation needs no queue of events. Only where
//! devices have to share cores it goes from event to event: see the module `shared`.
//!
//! An asynchronous device does nothing before its host thread has submitted it (module
//! `host`), and what is offloaded goes over the device's links to the host (module `offload`).
//! Both can make an action longer than its work: as in a measured timeline, an action lasts
//! from when its stream has come to it to when its last kernel is over.
//!
//! Between nodes whose devices share a network card, values of several devices wait for each
//! other (module `ports`), and time goes from one end of an action to the next (module
//! `by_time`). Replicas do the same at the same time, so that one of them is simulated; their
//! gradients are added up over all of them when each stage has its own (module `exchange`).
//!
//! Several processes begin a step one after the other, as the message that ends the one before
//! comes to them ([`Costs::with_joins`]), and take no value sooner.

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
mod shared;

pub(crate) use arrivals::Arrivals;
pub use critical::{CriticalPath, CriticalStep};
pub use jitter::{Jitter, JitteredSteps};
pub use memory::MemoryLevel;
pub(crate) use memory::change;
pub(crate) use program::Program;
pub use sensitivity::{Sensitivity, SensitivityTarget};

use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::Action;
use crate::timeline::{Span, Timeline};
use crate::units::{Bytes, Micros};
use crate::walk::walk;
use clock::Clock;

/// What a schedule is predicted to do.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// When each device does what.
    pub timeline: Timeline,
    schedule: CheckedSchedule,
    costs: Costs,
}

/// Runs `schedule` on paper with `costs`. A stage or edge that the costs do not
/// have takes no time. Where devices share cores that do not suffice for all of them
/// ([`Costs::with_cores`]), they take turns, the most urgent first; such devices are CPUs, of
/// which no host submits anything.
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

/// The timeline with all that `costs` has but the times of actions.
fn timeline_of(
    schedule: &CheckedSchedule,
    costs: &Costs,
    duration: impl Fn(Action) -> Micros,
) -> Timeline {
    let devices = schedule.schedule().devices();
    match costs.cores().filter(|cores| !cores.suffice(devices)) {
        Some(cores) => shared::timeline(schedule, costs, cores, duration),
        None => timeline(schedule, costs, Clock::new(schedule, costs, duration)),
    }
}

/// The same with a duration for each single action, such as those of a run that
/// was measured; of `costs` only the transfers count: what devices that share cores take from
/// each other, and waits for the host, are part of the durations.
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

/// What each device does, by device, where values of different devices do not meet on a link.
fn in_any_order(
    schedule: &CheckedSchedule,
    clock: &mut Clock<'_, impl Fn(Action) -> Micros>,
) -> Vec<Span> {
    let plan = schedule.schedule();
    let mut spans: Vec<Vec<Span>> = plan
        .iter()
        .map(|(_, list)| Vec::with_capacity(list.len()))
        .collect();
    // A checked schedule has been walked to its end before.
    let _ = walk(plan, schedule.owner(), |device, position, action| {
        let (start, end) = clock.run(device, position, action);
        clock.send(device, position, (action, end)).for_each(drop);
        spans[device.index()].push(Span {
            device,
            action,
            start,
            end,
        });
    });
    spans.into_iter().flatten().collect()
}

/// The memory of `device` over a timeline of `schedule`, such as one that was
/// measured, with the bytes that `costs` says: each change of its level, from time 0
/// on.
///
/// # Complexity
/// Linear in the number of the device's actions.
pub fn memory_over(
    schedule: &CheckedSchedule,
    costs: &Costs,
    timeline: &Timeline,
    device: DeviceId,
) -> Vec<MemoryLevel> {
    memory::levels(schedule, costs, timeline, device)
}

impl Simulation {
    /// From the first start to the last end over all devices.
    pub fn makespan(&self) -> Micros {
        self.timeline.makespan()
    }

    /// How long each device does not work.
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

    /// The memory of `device` over time: each change of its level, from time 0 on.
    ///
    /// # Complexity
    /// Linear in the number of the device's actions.
    pub fn memory(&self, device: DeviceId) -> Vec<MemoryLevel> {
        memory_over(&self.schedule, &self.costs, &self.timeline, device)
    }

    /// The highest level of each device's memory.
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

    /// The highest level of each stage's memory, whatever else its device holds.
    ///
    /// # Complexity
    /// Linear in the number of actions.
    pub fn stage_peak_bytes(&self) -> Vec<Bytes> {
        memory::stage_peaks(&self.schedule, &self.costs)
    }

    /// What the makespan consists of: the chain of actions and waits without slack.
    ///
    /// # Complexity
    /// Linear in the number of actions.
    pub fn critical_path(&self) -> CriticalPath {
        critical::path(&self.schedule, &self.timeline)
    }
}

#[cfg(test)]
mod tests;
