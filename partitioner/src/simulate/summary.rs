//! The numbers of a simulation that plans keep, without its timeline.

use std::borrow::Cow;

use super::clock::Clock;
use super::{memory, simulate};
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::Action;
use crate::timeline::Span;
use crate::units::{Bytes, Micros};
use crate::walk::walk;

/// Summary of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) makespan: Micros,
    /// Computing time of the busiest device.
    pub(crate) busy: Micros,
    /// Exchange of replicas after the last action.
    pub(crate) exposed: Micros,
    pub(crate) bubble: f64,
    /// Peak of each device's memory.
    pub(crate) peaks: Vec<Bytes>,
}

/// Returns the summary of a simulation, in less time and memory than all of it takes.
///
/// # Complexity
/// That of [`simulate`].
pub(crate) fn summary(schedule: &CheckedSchedule, costs: &Costs) -> Summary {
    let plan = schedule.schedule();
    let shares = (costs.cores()).is_some_and(|cores| !cores.suffice(plan.devices()));
    let others = shares
        || costs.cards().is_some()
        || costs.has_exchange()
        || costs.has_host()
        || costs.has_offload(!plan.offloads().is_empty())
        || costs.joins(DeviceId(0)).is_some();
    if others {
        return of_timeline(schedule, costs);
    }
    let starts = starts(schedule, costs);
    let spans = |device: DeviceId| -> Vec<Span> {
        let each = starts[device.index()].iter().zip(plan.actions(device));
        each.map(|(&start, &action)| Span {
            device,
            action,
            start,
            end: start + costs.stage(action.stage).of(action.kind),
        })
        .collect()
    };
    let (mut makespan, mut most, mut all) = (Micros::ZERO, Micros::ZERO, Micros::ZERO);
    let mut peaks = Vec::with_capacity(plan.devices());
    for device in (0..plan.devices()).map(DeviceId) {
        let mut busy = Micros::ZERO;
        let own = spans(device);
        for span in &own {
            busy += span.duration();
            // In one sum over all devices, as a timeline's bubble.
            all += span.duration();
            makespan = makespan.max(span.end);
        }
        most = most.max(busy);
        let of = |other: DeviceId| {
            if other == device {
                Cow::Borrowed(&own[..])
            } else {
                Cow::Owned(spans(other))
            }
        };
        let levels = memory::levels(schedule, costs, &of, device);
        let levels = levels.iter().map(|level| level.bytes);
        peaks.push(levels.max().unwrap_or_default());
    }
    let available = makespan.get() * plan.devices() as f64;
    let bubble = (1.0 - all.get() / available).max(0.0);
    Summary {
        makespan,
        busy: most,
        exposed: Micros::ZERO,
        bubble: if available == 0.0 { 0.0 } else { bubble },
        peaks,
    }
}

/// Returns the start of each action, by device.
fn starts(schedule: &CheckedSchedule, costs: &Costs) -> Vec<Vec<Micros>> {
    let plan = schedule.schedule();
    let duration = |action: Action| costs.stage(action.stage).of(action.kind);
    let mut clock = Clock::of_devices(schedule, costs, duration);
    let mut starts: Vec<Vec<Micros>> = plan
        .iter()
        .map(|(_, list)| Vec::with_capacity(list.len()))
        .collect();
    // Cannot fail: a checked schedule was already walked to its end.
    let _ = walk(plan, schedule.owner(), |device, position, action| {
        let (start, end) = clock.run(device, position, action);
        clock.send(device, position, (action, end)).for_each(drop);
        starts[device.index()].push(start);
    });
    starts
}

fn of_timeline(schedule: &CheckedSchedule, costs: &Costs) -> Summary {
    let simulation = simulate(schedule, costs);
    let timeline = &simulation.timeline;
    let mut busy = vec![Micros::ZERO; timeline.devices()];
    for span in timeline.spans() {
        busy[span.device.index()] = busy[span.device.index()] + span.duration();
    }
    Summary {
        makespan: timeline.makespan(),
        busy: busy.into_iter().max().unwrap_or_default(),
        exposed: timeline.exposed(),
        bubble: timeline.bubble_fraction(),
        peaks: simulation.peak_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::ScheduleKind;
    use crate::cost::StageMemory;
    use crate::ids::StageId;
    use crate::schedule::Shape;

    #[test]
    fn a_summary_equals_that_of_the_timeline() {
        let micros = |value| Micros::new(value).unwrap();
        let memory = |stage: u64| StageMemory {
            parameters: Bytes(100),
            activation: Bytes(70 + 13 * stage),
            sent: Bytes(5 + stage),
            working: Bytes(11),
            ..StageMemory::default()
        };
        let mut compared = 0;
        for kind in ScheduleKind::ALL {
            for (chunks, micro) in [(1, 1), (1, 9), (2, 4), (2, 8), (3, 12)] {
                let shape = Shape::new(4, micro).with_chunks(chunks);
                let Ok(schedule) = kind.generate(shape) else {
                    continue;
                };
                let costs = Costs::uniform(shape.stages(), micros(1.1), micros(2.3), micros(0.7))
                    .with_transfer(micros(0.3), micros(0.1));
                let stages = (0..shape.stages()).map(StageId);
                let costs = stages.fold(costs, |costs, stage| {
                    costs.with_memory(stage, memory(stage.index() as u64))
                });
                let expected = of_timeline(&schedule, &costs);
                assert_eq!(summary(&schedule, &costs), expected, "{kind} {shape:?}");
                compared += 1;
            }
        }
        assert!(compared > 20, "{compared}");
    }
}
