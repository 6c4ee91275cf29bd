//! `auto`: a schedule computed for given times, links and memory.
//!
//! Candidates are all built-in training schedules of the shape and, for each
//! placement and a set of policies, what a greedy list scheduler makes of the
//! costs. Each is simulated; of those that fit the memory caps the
//! one with the shortest makespan is taken, the first of several. It is therefore
//! never worse than the best built-in schedule that fits.
//!
//! The best one is then changed, an action at a time (module `local`), and a search over all
//! orders that drops what cannot be better (module `beam`) looks for another one: for small
//! shapes it proves which schedule is the best. Where costs say what a recompute brings
//! ([`StageMemory::recomputable`](crate::StageMemory::recomputable)), it decides that, too, for
//! each micro-batch on each stage; and schedules that need more memory are candidates with as many
//! recomputes, or as much offloaded over a link to the host's memory
//! ([`StageMemory::offloadable`](crate::StageMemory::offloadable)), as make them fit (module `thin`).
//! Where memory is what schedules lack, so are orders that repeat (module `repeat`).
//!
//! The result comes with a lower bound on every schedule's makespan: how far it can
//! be from the best.
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
use candidates::{CandidateSearch, is_placed};
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
/// The largest of several, none of which knows of busy links or of devices that wait for each other in
/// between. With G = min(B, I) and A = min(B, I+W) of a stage, T of the edge after it
/// (nothing within a device), and `a` the lowest stage of a device:
/// - Σ before a (F+T) + m·Σ own (F+A): the first micro-batch has to come, then there
///   is that much work;
/// - Σ before a (F+T) + m·Σ own (F+G) + Σ before a (G+T), with A for G of stage 0: the
///   last gradient has to go all the way back;
/// - Σ all (F+G+2T), with A for G of stage 0: one micro-batch there and back;
/// - the same from each micro-batch on, where memory has held its forward back until an earlier
///   one was through;
/// - with what a device loses before its first gradient and after its last forward, where memory holds
///   little (module `windows`);
/// - what the search has proved: the step itself, where it was never short of states.
///
/// It holds for every schedule with the placements that may be taken whose stages do their forwards,
/// input gradients and weight gradients each in the order of micro-batches, and never exceeds the
/// step.
///
/// # Errors
/// [`ScheduleError::NothingFits`] when every candidate exceeds a cap, with the
/// least excess: one candidate has a single micro-batch under way and joint
/// backwards (for shapes of up to 20,000 stages times micro-batches). With one chunk a device no order
/// that neither recomputes nor offloads takes less memory; with several, another one may.
/// [`ScheduleError::Unsupported`] for a shape that no schedule has.
///
/// # Determinism
/// A function of its arguments alone.
///
/// # Complexity
/// Some dozens of simulations, and what [`Effort::usual`] allows on top of it.
pub fn auto(
    shape: Shape,
    costs: &Costs,
    caps: &[Option<Bytes>],
    placement: Option<Placement>,
) -> Result<Auto, ScheduleError> {
    auto_within(shape, costs, caps, placement, Effort::usual(shape))
}

/// How much is tried beside built-in schedules and greedy ones. A search is over sooner where a
/// schedule is proved to be the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// How many states the exact search may keep of each size: where these suffice, the
    /// result is proved to be the best. 0 for none.
    pub states: usize,
    /// How many times the best schedules are changed, an action at a time.
    pub moves: usize,
}

impl Effort {
    /// Nothing but built-in schedules and greedy ones.
    pub const NONE: Self = Self {
        states: 0,
        moves: 0,
    };

    /// What takes tenths of a second at most: less for larger shapes, none for the largest.
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

/// The same with more effort, or less.
///
/// # Complexity
/// O(states · stages² · micro-batches²) for the search, O(moves · stages · micro-batches) for the
/// changes and for orders that repeat, on top of that of [`auto`].
pub fn auto_within(
    shape: Shape,
    costs: &Costs,
    caps: &[Option<Bytes>],
    placement: Option<Placement>,
    effort: Effort,
) -> Result<Auto, ScheduleError> {
    // One that takes every shape says what is wrong with this one.
    ScheduleKind::LoopedBfs.list(shape)?;
    let placements = placements(shape, placement);
    let caps = &reachable(shape, costs, caps, &placements)[..];
    let mut search = CandidateSearch::new(shape, costs, caps);
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

/// The caps without those that no schedule reaches: what is searched with a cap is searched less
/// far, and may recompute for nothing.
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

/// The placements that may be taken; with one chunk there is only one.
fn placements(shape: Shape, wanted: Option<Placement>) -> Vec<Placement> {
    match wanted {
        _ if shape.chunks == 1 => vec![Placement::Loop],
        Some(placement) => vec![placement],
        None => vec![Placement::Loop, Placement::Vee],
    }
}

impl Auto {
    /// How much longer than the lower bound the step is, as a share of that: 0 where no schedule
    /// that takes micro-batches in order is better.
    pub fn gap(&self) -> f64 {
        let bound = self.lower_bound.get().max(f64::MIN_POSITIVE);
        self.simulation.makespan().get() / bound - 1.0
    }
}
