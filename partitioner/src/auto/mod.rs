//! `auto`: a schedule computed for given times, links and memory.
//!
//! Candidates are all built-in training schedules of the shape and, for each
//! placement and a set of policies, what a greedy list scheduler makes of the
//! costs. Each is simulated; of those that fit the memory caps the
//! one with the shortest makespan is taken, the first of several. It is therefore
//! never worse than the best built-in schedule that fits.
//!
//! The result comes with a lower bound on every schedule's makespan: how far it can
//! be from the best.
//!
//! *Source*: list scheduling with a memory limit as in Qi et al., "Zero Bubble
//! Pipeline Parallelism", arXiv:2401.10241, section 3.1.

mod bound;
mod greedy;
mod in_a_row;

use crate::builtin::{ScheduleError, ScheduleKind};
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::{Placement, Shape};
use crate::simulate::{Simulation, simulate};
use crate::units::{Bytes, Micros};
use greedy::Policy;

pub use in_a_row::{AutoInARow, auto_in_a_row};

/// A schedule that has been simulated for the costs at hand.
#[derive(Clone, Debug)]
pub struct AutoCandidate {
    /// Its name: a built-in one's, or `auto` with the policy that made it.
    pub name: String,
    /// The predicted makespan.
    pub makespan: Micros,
    /// The device that is furthest above its cap and by how much, if any is.
    pub exceeds: Option<(DeviceId, Bytes)>,
}

/// What [`auto`] found.
#[derive(Clone, Debug)]
pub struct Auto {
    /// The schedule; its name is `auto` when it was computed, else the built-in's.
    pub schedule: CheckedSchedule,
    /// Its prediction.
    pub simulation: Simulation,
    /// No schedule of this shape can be shorter.
    pub lower_bound: Micros,
    /// Everything that was tried, in order.
    pub candidates: Vec<AutoCandidate>,
}

/// The best training schedule that is known for these costs: the costs' stages are
/// the shape's v·p. `caps` holds what each device's memory may reach; a device
/// without an entry has no cap. With `placement` only schedules that place the
/// stages so are taken.
///
/// # Lower bound
/// With G = min(B, I) and A = min(B, I+W) of a stage, T of the edge after it
/// (nothing within a device), and `a` the lowest stage of a device, the makespan is
/// at least the largest, over all devices, of
/// - Σ before a (F+T) + m·Σ own (F+A): the first micro-batch has to come, then there
///   is that much work;
/// - Σ before a (F+T) + m·Σ own (F+G) + Σ before a (G+T), with A for G of stage 0: the
///   last gradient has to go all the way back;
/// - Σ all (F+G+2T), with A for G of stage 0: one micro-batch there and back.
///
/// It holds for every schedule with the placements that may be taken, whatever the
/// caps. 500 random cases hold it against what is found, in the tests.
///
/// # Errors
/// [`ScheduleError::NothingFits`] when every candidate exceeds a cap, with the
/// least excess: one candidate has a single micro-batch under way and joint
/// backwards, which is the least memory that any schedule takes (for shapes of up
/// to 20,000 stages times micro-batches); [`ScheduleError::Unsupported`] for a shape that no schedule has.
///
/// # Determinism
/// A function of its arguments alone.
///
/// # Complexity
/// Some dozens of simulations.
pub fn auto(
    shape: Shape,
    costs: &Costs,
    caps: &[Option<Bytes>],
    placement: Option<Placement>,
) -> Result<Auto, ScheduleError> {
    // One that takes every shape says what is wrong with this one.
    ScheduleKind::LoopedBfs.list(shape)?;
    let placements = placements(shape, placement);
    let mut search = CandidateSearch {
        shape,
        costs,
        caps,
        best: None,
        candidates: Vec::new(),
    };
    for kind in ScheduleKind::ALL {
        // `auto` itself is not in a list.
        if kind.trains()
            && let Ok(schedule) = kind.list(shape)
            && placements
                .iter()
                .any(|placement| is_placed(&schedule, *placement, shape))
        {
            search.offer(kind.name().to_owned(), schedule);
        }
    }
    for &placement in &placements {
        for policy in Policy::all(shape) {
            if let Some(schedule) = greedy::run(shape, placement, costs, caps, policy) {
                search.offer(format!("auto ({placement:?}, {policy})"), schedule);
            }
        }
    }
    let bounds = placements
        .iter()
        .map(|&placement| bound::makespan(shape, placement, costs));
    search.finish(bounds.min().unwrap_or_default())
}

/// The placements that may be taken; with one chunk there is only one.
fn placements(shape: Shape, wanted: Option<Placement>) -> Vec<Placement> {
    match wanted {
        _ if shape.chunks == 1 => vec![Placement::Loop],
        Some(placement) => vec![placement],
        None => vec![Placement::Loop, Placement::Vee],
    }
}

fn is_placed(schedule: &CheckedSchedule, placement: Placement, shape: Shape) -> bool {
    let devices = placement.devices(shape);
    devices
        .iter()
        .map(|device| device.index())
        .eq(schedule.owner().iter().map(|&d| d as usize))
}

struct CandidateSearch<'a> {
    shape: Shape,
    costs: &'a Costs,
    caps: &'a [Option<Bytes>],
    best: Option<(CheckedSchedule, Simulation)>,
    candidates: Vec<AutoCandidate>,
}

impl CandidateSearch<'_> {
    fn offer(&mut self, name: String, schedule: CheckedSchedule) {
        let simulation = simulate(&schedule, self.costs);
        let exceeds = self.exceeds(&simulation);
        let makespan = simulation.makespan();
        self.candidates.push(AutoCandidate {
            name,
            makespan,
            exceeds,
        });
        let best = self.best.as_ref().map(|(_, best)| best.makespan());
        if exceeds.is_none() && best.is_none_or(|best| makespan < best) {
            self.best = Some((schedule, simulation));
        }
    }

    fn exceeds(&self, simulation: &Simulation) -> Option<(DeviceId, Bytes)> {
        if self.caps.iter().all(Option::is_none) {
            return None;
        }
        let over = |(device, (peak, cap)): (usize, (Bytes, &Option<Bytes>))| {
            let over = peak - (*cap)?;
            (over > Bytes::ZERO).then_some((DeviceId(device), over))
        };
        let peaks = simulation.peak_bytes().into_iter().zip(self.caps);
        peaks
            .enumerate()
            .filter_map(over)
            .max_by_key(|&(_, over)| over)
    }

    fn finish(self, lower_bound: Micros) -> Result<Auto, ScheduleError> {
        if let Some((schedule, simulation)) = self.best {
            return Ok(Auto {
                schedule,
                simulation,
                lower_bound,
                candidates: self.candidates,
            });
        }
        let least = self.candidates.iter().filter_map(|c| Some((c, c.exceeds?)));
        let least = least.min_by_key(|(_, (_, over))| *over);
        let (name, device, over) = least.map_or(
            (String::new(), DeviceId(0), Bytes::ZERO),
            |(c, (device, over))| (c.name.clone(), device, over),
        );
        Err(ScheduleError::NothingFits {
            shape: self.shape,
            name,
            device,
            over,
        })
    }
}
