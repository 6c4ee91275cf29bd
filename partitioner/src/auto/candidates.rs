//! Candidates for `auto`, and improvements of the best one.

use super::pipeline::Pipeline;
use super::policy::Policy;
use super::refine::{self, Start};
use super::remaining::Remaining;
use super::state::State;
use super::thin::{self, Means, Thinned};
use super::{Auto, AutoCandidate, Effort, beam, bound, greedy, local, windows};
use crate::builtin::{ScheduleError, ScheduleKind};
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::schedule::{Action, Placement, Schedule, Shape};
use crate::simulate::{Simulation, simulate};
use crate::units::{Bytes, Micros};

/// Skip the search at this many stages times micro-batches: a state's counters are u16, and there
/// is little to gain.
pub(super) const LARGEST: usize = 1 << 16;
/// Divisors of the number of changes if each change also decides which single micro-batches are
/// recomputed or offloaded, for which it is simulated.
const RECOMPUTED: usize = 4;
const OFFLOADED: usize = 16;
/// Above this many stages times micro-batches, fewer candidates are made for a relaxed memory cap.
const LARGE: usize = 4_000;

pub(super) struct CandidateSearch<'a> {
    pub(super) shape: Shape,
    pub(super) costs: &'a Costs,
    pub(super) caps: &'a [Option<Bytes>],
    best: Option<(CheckedSchedule, Simulation)>,
    /// The best candidate that offloads no single micro-batches, if another one is better. Changes
    /// start from it, since they do not support offload.
    best_kept: Option<(CheckedSchedule, Simulation)>,
    /// Order of the best schedule made for a relaxed memory cap, with its placement.
    pub(super) start: Option<(Placement, Start)>,
    candidates: Vec<AutoCandidate>,
}

impl<'a> CandidateSearch<'a> {
    pub(super) fn new(shape: Shape, costs: &'a Costs, caps: &'a [Option<Bytes>]) -> Self {
        Self {
            shape,
            costs,
            caps,
            best: None,
            best_kept: None,
            start: None,
            candidates: Vec::new(),
        }
    }
}

impl CandidateSearch<'_> {
    pub(super) fn offer(&mut self, name: String, schedule: CheckedSchedule) {
        let simulation = simulate(&schedule, self.costs);
        let exceeds = self.exceeds(&simulation);
        let makespan = simulation.makespan();
        self.candidates.push(AutoCandidate {
            name,
            makespan,
            exceeds,
        });
        if exceeds.is_some() {
            return;
        }
        let is_better = |than: &Option<(CheckedSchedule, Simulation)>| {
            let than = than.as_ref().map(|(_, than)| than.makespan());
            than.is_none_or(|than| makespan < than)
        };
        let keeps = schedule.schedule().offloads().is_empty();
        if is_better(&self.best) {
            let before = self.best.replace((schedule, simulation));
            let kept = before.filter(|(own, _)| !keeps && own.schedule().offloads().is_empty());
            self.best_kept = kept.or(self.best_kept.take()).filter(|_| !keeps);
        } else if keeps && is_better(&self.best_kept) {
            self.best_kept = Some((schedule, simulation));
        }
    }

    /// Whether every candidate fits the memory.
    pub(super) fn all_fit(&self) -> bool {
        self.candidates.iter().all(|own| own.exceeds.is_none())
    }

    /// Whether a candidate that does not fit is shorter than all that do.
    pub(super) fn lacks_memory(&self) -> bool {
        let upper = self.upper();
        let shorter = |own: &AutoCandidate| own.exceeds.is_some() && own.makespan.get() < upper;
        self.candidates.iter().any(shorter)
    }

    /// Adds built-in schedules, and greedy ones for relaxed memory caps, with as many single
    /// micro-batches recomputed or offloaded as necessary to fit.
    pub(super) fn relieve(&mut self, placement: Placement) {
        /// Factors on the memory beyond the fixed part.
        const MORE: [f64; 4] = [1.25, 1.5, 2.0, 3.0];
        let cells = self.shape.stages() * self.shape.micro_batches;
        if self.all_fit() || cells >= LARGEST {
            return;
        }
        let more = if cells > LARGE { &MORE[2..3] } else { &MORE };
        let pipeline = Pipeline::new(self.shape, placement, self.costs, self.caps);
        let means = Means::all(&pipeline);
        if means.is_empty() {
            return;
        }
        let mut all: Vec<(String, CheckedSchedule)> = Vec::new();
        for kind in ScheduleKind::ALL.into_iter().filter(|kind| kind.trains()) {
            if let Ok(schedule) = kind.list(self.shape)
                && is_placed(&schedule, placement, self.shape)
            {
                all.push((kind.name().to_owned(), schedule));
            }
        }
        for &more in more {
            let caps: Vec<Option<Bytes>> = (pipeline.devices.iter())
                .map(|own| own.cap.map(|cap| own.more(cap, more)))
                .collect();
            for policy in Policy::all(self.shape) {
                // It does not become shorter by what makes it fit.
                let within = (policy, self.upper());
                if let Some(schedule) =
                    greedy::run(self.shape, placement, self.costs, &caps, within)
                {
                    all.push((format!("{policy}"), schedule));
                }
            }
        }
        for (name, schedule) in all {
            for &means in means {
                let schedule = schedule.schedule();
                if let Some(thinned) = thin::thinned(&pipeline, self.costs, schedule, means) {
                    let name = format!("auto ({placement:?}, {name}, {})", means.words());
                    let upper = self.upper();
                    self.offer_thinned(name, thinned);
                    if self.upper() < upper {
                        let order = schedule.clone();
                        self.start = Some((placement, Start { order, means }));
                    }
                }
            }
        }
    }

    /// Changes the best schedule, if it has this placement.
    pub(super) fn change_best(&mut self, placement: Placement, effort: Effort) {
        if effort.moves == 0 || self.shape.stages() * self.shape.micro_batches >= LARGEST {
            return;
        }
        let pipeline = Pipeline::new(self.shape, placement, self.costs, self.caps);
        let bound = least(self.shape, placement, self.costs, self.caps);
        let start = self.start.take_if(|(own, _)| *own == placement);
        let refined = start.map(|(_, start)| {
            let share = match start.means {
                Means::Recompute => RECOMPUTED,
                Means::Offload | Means::Either => OFFLOADED,
            };
            let limit = (effort.moves / share, bound.get());
            refine::refined(&pipeline, self.costs, &start, limit)
        });
        // Changes do not offload single micro-batches.
        let pipeline = pipeline.keeping(self.costs);
        self.change(placement, &pipeline, effort.moves, bound);
        let before = self.upper();
        for schedule in refined.unwrap_or_default() {
            self.offer(format!("auto ({placement:?}, refined)"), schedule);
        }
        if self.upper() < before {
            self.change(placement, &pipeline, effort.moves, bound);
        }
    }

    /// Searches for a better schedule with this placement. *Returns* a lower bound of all.
    pub(super) fn search(&mut self, placement: Placement, states: usize) -> Micros {
        let bound = least(self.shape, placement, self.costs, self.caps);
        let large = self.shape.stages() * self.shape.micro_batches >= LARGEST;
        if large || states == 0 || self.upper() <= bound.get() {
            return bound;
        }
        let pipeline = Pipeline::new(self.shape, placement, self.costs, self.caps);
        // The search does not offload single micro-batches, nor prove anything of such schedules.
        let leaves = pipeline.stages.iter().any(|stage| stage.bytes.may_leave());
        let found = beam::search(&pipeline.keeping(self.costs), states, self.upper());
        if let Some(lists) = found.lists {
            self.offer_lists(format!("auto ({placement:?}, search)"), lists);
        }
        if leaves {
            return bound;
        }
        bound.max(Micros::saturating(found.bound))
    }

    /// Returns the best makespan in microseconds.
    pub(super) fn upper(&self) -> f64 {
        let best = self.best.as_ref();
        best.map_or(f64::INFINITY, |(_, best)| best.makespan().get())
    }

    /// Changes the best schedule without offload, if it has this placement.
    fn change(&mut self, placement: Placement, pipeline: &Pipeline, moves: usize, bound: Micros) {
        let kept = |own: &&(CheckedSchedule, Simulation)| own.0.schedule().offloads().is_empty();
        let best = self.best.as_ref().filter(kept);
        let Some((schedule, simulation)) = best.or(self.best_kept.as_ref()) else {
            return;
        };
        if !is_placed(schedule, placement, self.shape) || simulation.makespan() <= bound {
            return;
        }
        let lists: Vec<_> = schedule
            .schedule()
            .iter()
            .map(|(_, list)| list.to_vec())
            .collect();
        if let Some(lists) = local::improve(pipeline, &lists, moves, bound.get()) {
            self.offer_lists(format!("auto ({placement:?}, changed)"), lists);
        }
    }

    pub(super) fn offer_lists(&mut self, name: String, lists: Vec<Vec<Action>>) {
        let (stages, m) = (self.shape.stages(), self.shape.micro_batches);
        if let Ok(schedule) = Schedule::new("auto", stages, m, lists).check() {
            self.offer(name, schedule);
        }
    }

    pub(super) fn offer_thinned(&mut self, name: String, thinned: Thinned) {
        let (stages, m) = (self.shape.stages(), self.shape.micro_batches);
        if let Ok(schedule) = thinned.schedule(stages, m).check() {
            self.offer(name, schedule);
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

    pub(super) fn finish(self, lower_bound: Micros) -> Result<Auto, ScheduleError> {
        if let Some((schedule, simulation)) = self.best {
            return Ok(Auto {
                schedule,
                // Rounding may differ between orders of summation.
                lower_bound: lower_bound.min(simulation.makespan()),
                simulation,
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

/// Returns a lower bound of all schedules with this placement.
///
/// # Complexity
/// O(stages · micro-batches).
pub(super) fn least(
    shape: Shape,
    placement: Placement,
    costs: &Costs,
    caps: &[Option<Bytes>],
) -> Micros {
    let simple = bound::makespan(shape, placement, costs);
    if shape.stages() * shape.micro_batches >= LARGEST {
        return simple;
    }
    let pipeline = Pipeline::new(shape, placement, costs, caps);
    let first = Remaining::new(&pipeline).bound(&State::new(&pipeline));
    simple.max(Micros::saturating(first.max(windows::makespan(&pipeline))))
}

/// Whether the schedule has this placement.
pub(super) fn is_placed(schedule: &CheckedSchedule, placement: Placement, shape: Shape) -> bool {
    let devices = placement.devices(shape);
    devices
        .iter()
        .map(|device| device.index())
        .eq(schedule.owner().iter().map(|&d| d as usize))
}
