//! The fastest schedule over several steps in a row.

use super::pipeline::Pipeline;
use super::{Auto, auto, staggered};
use crate::builtin::{ScheduleError, ScheduleKind};
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::{Placement, Schedule, Shape};
use crate::simulate::{Simulation, simulate};
use crate::units::Bytes;

/// Result of [`auto_in_a_row`].
#[derive(Clone, Debug)]
pub struct AutoInARow {
    /// The schedule of one step.
    pub schedule: CheckedSchedule,
    /// The prediction of all steps.
    pub simulation: Simulation,
}

/// Same as [`auto`], for `steps` steps in a row without a barrier
/// ([`Schedule::in_a_row`](crate::Schedule::in_a_row)). Returns the schedule whose steps end first among
/// the built-in training schedules, the result of [`auto`] for one step, and, with one stage per device,
/// Zero Bubble's heuristic for the costs (module `staggered`). The shortest single step begins and ends
/// at the same time on all devices; steps in a row are shorter if each device begins when the device
/// before it has an output for it.
///
/// # Errors
/// Those of [`auto`].
///
/// # Examples
/// ```
/// use gpipe_partitioner::{Costs, Micros, Shape, auto, auto_in_a_row};
///
/// let unit = Micros::new(1.0)?;
/// let costs = Costs::uniform(4, unit, unit, unit);
/// let found = auto_in_a_row(Shape::new(4, 8), &costs, &[], None, 20)?;
/// assert_eq!(found.schedule.schedule().name(), "zb-h2");
/// assert_eq!(found.simulation.timeline.steady_bubble(20), Some(0.0));
/// // Alone, another one is as short and needs less memory.
/// let alone = auto(Shape::new(4, 8), &costs, &[], None)?;
/// assert_eq!(alone.schedule.schedule().name(), "zb-h1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn auto_in_a_row(
    shape: Shape,
    costs: &Costs,
    caps: &[Option<Bytes>],
    placement: Option<Placement>,
    steps: usize,
) -> Result<AutoInARow, ScheduleError> {
    let Auto { schedule, .. } = auto(shape, costs, caps, placement)?;
    let mut best = run(schedule, costs, steps)?;
    let kinds = ScheduleKind::ALL.into_iter().filter(|kind| kind.trains());
    let built_in = kinds.filter_map(|kind| kind.generate(shape).ok());
    for schedule in built_in.chain(staggered(shape, costs, caps)) {
        if !is_placed(&schedule, placement, shape) {
            continue;
        }
        let found = run(schedule, costs, steps)?;
        if found.simulation.makespan() < best.simulation.makespan() && fits(&found.simulation, caps)
        {
            best = found;
        }
    }
    Ok(best)
}

/// Returns schedules in which each device begins later than the one before; one stage per device.
fn staggered(shape: Shape, costs: &Costs, caps: &[Option<Bytes>]) -> Vec<CheckedSchedule> {
    if shape.chunks > 1 {
        return Vec::new();
    }
    let pipeline = Pipeline::new(shape, Placement::Loop, costs, caps);
    let name = ScheduleKind::Auto.name();
    let schedules = staggered::lists(&pipeline)
        .map(|lists| Schedule::new(name, shape.stages(), shape.micro_batches, lists));
    schedules
        .filter_map(|schedule| schedule.check().ok())
        .collect()
}

fn run(
    schedule: CheckedSchedule,
    costs: &Costs,
    steps: usize,
) -> Result<AutoInARow, ScheduleError> {
    let all = schedule.schedule().in_a_row(steps).check()?;
    Ok(AutoInARow {
        simulation: simulate(&all, costs),
        schedule,
    })
}

/// Whether the schedule has the wanted placement.
fn is_placed(schedule: &CheckedSchedule, wanted: Option<Placement>, shape: Shape) -> bool {
    let stages = 0..shape.stages();
    let own: Vec<DeviceId> = stages
        .map(|stage| schedule.device_of(crate::ids::StageId(stage)))
        .collect();
    wanted.is_none_or(|placement| own == placement.devices(shape))
}

fn fits(simulation: &Simulation, caps: &[Option<Bytes>]) -> bool {
    let peaks = simulation.peak_bytes().into_iter().zip(caps);
    peaks
        .into_iter()
        .all(|(peak, cap)| cap.is_none_or(|cap| peak <= cap))
}
