//! `auto`: a schedule computed for given times, links and memory.
//!
//! Candidates are all built-in training schedules of the shape and, for each placement and a set of
//! policies, the result of a greedy list scheduler for the costs. Each is simulated; among those that
//! fit the memory caps, the one with the shortest makespan is taken, the first of several. The result
//! is therefore never worse than the best built-in schedule that fits.
//!
//! The best one is then changed, an action at a time (module `local`), and a search over all orders,
//! which drops those that cannot be better (module `beam`), looks for another one: for small shapes it
//! proves which schedule is the best. If the costs state the gain of a recompute
//! ([`StageMemory::recomputable`](crate::StageMemory::recomputable)), it also decides on recomputes
//! for each micro-batch on each stage; and schedules that need more memory become candidates with
//! enough recomputes, or enough offload over a link to the host's memory
//! ([`StageMemory::offloadable`](crate::StageMemory::offloadable)), to fit (module `thin`). If
//! schedules lack memory, periodic orders are candidates, too (module `repeat`).
//!
//! The result comes with a lower bound on every schedule's makespan, which limits its distance from
//! the best.
//!
//! *Source*: list scheduling with a memory limit as in Qi et al., "Zero Bubble
//! Pipeline Parallelism", arXiv:2401.10241, section 3.1.

mod beam;
mod bound;
mod candidates;
mod follow;
mod greedy;
mod in_a_row;
mod local;
mod memory;
mod pattern;
mod pipeline;
mod policy;
mod refine;
mod remaining;
mod repeat;
mod staggered;
mod state;
mod thin;
mod windows;

use crate::builtin::{ScheduleError, ScheduleKind};
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::{DeviceId, StageId};
use crate::schedule::{Placement, Shape};
use crate::simulate::Simulation;
use crate::units::{Bytes, Micros};
pub(crate) use bound::makespan_of as least_makespan;
use candidates::{CandidateSearch, is_placed, least};
use policy::Policy;

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

/// Result of [`auto`].
#[derive(Clone, Debug)]
pub struct Auto {
    /// The schedule; its name is `auto` when it was computed, else the built-in's.
    pub schedule: CheckedSchedule,
    /// Prediction for the schedule.
    pub simulation: Simulation,
    /// Lower bound on the makespan of every schedule of this shape.
    pub lower_bound: Micros,
    /// The candidates, in the order in which they were tried, but for those given up as slower than one
    /// before: no more after one that is proved to be the best.
    pub candidates: Vec<AutoCandidate>,
}

/// Returns the best known training schedule for these costs, whose stages are the shape's v·p. `caps`
/// are the devices' memory limits; a device without an entry has none. With a `placement`, only
/// schedules with this placement are taken.
///
/// # Lower bound
/// The largest of several bounds, none of which accounts for busy links or for devices that wait for
/// each other in between. With G = min(B, I) and A = min(B, I+W) of a stage, T of the edge after it (0
/// within a device), and `a` the lowest stage of a device:
/// - Σ before a (F+T) + m·Σ own (F+A): the first micro-batch has to arrive, then there is that much
///   work;
/// - Σ before a (F+T) + m·Σ own (F+G) + Σ before a (G+T), with A for G of stage 0: the last gradient
///   has to go all the way back;
/// - Σ all (F+G+2T), with A for G of stage 0: one micro-batch there and back;
/// - the same from each micro-batch on, if memory holds its forward back until an earlier one is
///   through;
/// - with the time that a device loses before its first gradient and after its last forward, if memory
///   is tight (module `windows`);
/// - the bound proved by the search: the step itself, if it never dropped a state for lack of room.
///
/// It holds for every schedule with a permitted placement whose stages do their forwards, input
/// gradients and weight gradients each in the order of micro-batches, and never exceeds the step.
///
/// # Errors
/// [`ScheduleError::NothingFits`] when every candidate exceeds a cap, with the least excess: one
/// candidate has a single micro-batch in flight and joint backwards (for shapes of up to 20,000 stages
/// times micro-batches). With one chunk per device no order without recompute and offload takes less
/// memory; with several chunks, another one may. [`ScheduleError::Unsupported`] for a shape that no
/// schedule has.
///
/// # Determinism
/// The result depends only on the arguments.
///
/// # Complexity
/// Some dozens of simulations, and the work that [`Effort::usual`] permits in addition.
pub fn auto(
    shape: Shape,
    costs: &Costs,
    caps: &[Option<Bytes>],
    placement: Option<Placement>,
) -> Result<Auto, ScheduleError> {
    auto_within(shape, costs, caps, placement, Effort::usual(shape))
}

/// Limits of the work beyond built-in and greedy schedules. A search ends earlier if a schedule is
/// proved to be the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// States that the exact search may keep of each size: if these suffice, the result is proved to
    /// be the best. 0 skips the search.
    pub states: usize,
    /// Number of changes of the best schedules, an action at a time.
    pub moves: usize,
}

impl Effort {
    /// Built-in and greedy schedules only.
    pub const NONE: Self = Self {
        states: 0,
        moves: 0,
    };

    /// Effort of a few tenths of a second at most: less for larger shapes, none for the largest.
    pub fn usual(shape: Shape) -> Self {
        const STATES: usize = 1 << 19;
        const MOVED: usize = 1 << 21;
        let cells = shape.stages().saturating_mul(shape.micro_batches).max(1);
        Self {
            states: (STATES / cells.saturating_mul(cells)).min(512),
            moves: (MOVED / cells).min(20_000) / 16 * 16,
        }
    }
}

/// Same as [`auto`], with more or less effort.
///
/// # Complexity
/// O(states · stages² · micro-batches²) for the search, O(moves · stages · micro-batches) for changes
/// and periodic orders, in addition to that of [`auto`].
pub fn auto_within(
    shape: Shape,
    costs: &Costs,
    caps: &[Option<Bytes>],
    placement: Option<Placement>,
    effort: Effort,
) -> Result<Auto, ScheduleError> {
    // This kind takes every valid shape, so its error explains an invalid one.
    ScheduleKind::LoopedBfs.check_shape(shape)?;
    let placements = placements(shape, placement);
    let caps = &reachable(shape, costs, caps, &placements)[..];
    let bound = lower_bound(shape, costs, caps, &placements);
    let mut search = CandidateSearch::new(shape, costs, caps);
    for kind in ScheduleKind::ALL {
        // `auto` itself has no list.
        if kind.trains()
            && let Ok(schedule) = kind.list(shape)
            && placements
                .iter()
                .any(|placement| is_placed(&schedule, *placement, shape))
        {
            search.offer(kind.name().to_owned(), schedule);
        }
    }
    if search.upper() <= bound.get() {
        return search.finish(bound);
    }
    for &placement in &placements {
        for policy in Policy::all(shape) {
            let within = (policy, search.upper());
            if let Some(schedule) = greedy::run(shape, placement, costs, caps, within) {
                search.offer(format!("auto ({placement:?}, {policy})"), schedule);
            }
        }
        search.relieve(placement);
    }
    for &placement in &placements {
        search.change_best(placement, effort);
    }
    let before = search.upper();
    for &placement in &placements {
        search.repeat(placement, effort.moves);
    }
    if search.upper() < before {
        for &placement in &placements {
            search.change_best(placement, effort);
        }
    }
    let bounds = (placements.iter()).map(|&placement| search.search(placement, effort.states));
    let bound = bounds.min().unwrap_or_default();
    search.finish(bound)
}

/// Returns a lower bound on the makespan of every schedule that [`auto`] may return.
///
/// # Complexity
/// O(stages · micro-batches).
pub(crate) fn least_of_all(
    shape: Shape,
    costs: &Costs,
    caps: &[Option<Bytes>],
    placement: Option<Placement>,
) -> Micros {
    let placements = placements(shape, placement);
    let caps = reachable(shape, costs, caps, &placements);
    lower_bound(shape, costs, &caps, &placements)
}

fn lower_bound(
    shape: Shape,
    costs: &Costs,
    caps: &[Option<Bytes>],
    placements: &[Placement],
) -> Micros {
    let each = placements.iter();
    let each = each.map(|&placement| least(shape, placement, costs, caps));
    each.min().unwrap_or_default()
}

/// Returns the caps without those that no schedule reaches: with caps, searches are slower and may
/// recompute in vain.
fn reachable(
    shape: Shape,
    costs: &Costs,
    caps: &[Option<Bytes>],
    placements: &[Placement],
) -> Vec<Option<Bytes>> {
    let most = |device: usize| {
        let of = |placement: &Placement| -> u64 {
            let devices = placement.devices(shape);
            let stages = devices.iter().enumerate();
            let stages = stages.filter(|(_, own)| own.index() == device);
            let bytes = stages.map(|(stage, _)| memory::most(costs.memory(StageId(stage)), shape));
            bytes.fold(0, u64::saturating_add)
        };
        placements.iter().map(of).max().unwrap_or(u64::MAX)
    };
    let caps = caps.iter().enumerate();
    let caps = caps.map(|(device, cap)| cap.filter(|cap| cap.get() < most(device)));
    caps.collect()
}

/// Returns the permitted placements; with one chunk there is only one.
fn placements(shape: Shape, wanted: Option<Placement>) -> Vec<Placement> {
    match wanted {
        _ if shape.chunks == 1 => vec![Placement::Loop],
        Some(placement) => vec![placement],
        None => vec![Placement::Loop, Placement::Vee],
    }
}

impl Auto {
    /// Relative excess of the step over the lower bound: 0 if no schedule that takes micro-batches in
    /// order is better.
    pub fn gap(&self) -> f64 {
        let bound = self.lower_bound.get().max(f64::MIN_POSITIVE);
        self.simulation.makespan().get() / bound - 1.0
    }
}
