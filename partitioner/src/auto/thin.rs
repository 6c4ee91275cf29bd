//! Recomputes or offloads single micro-batches of a schedule until it fits the memory.
//!
//! When an action does not fit, the micro-batch on the device whose backward is furthest away goes first
//! (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966): it makes room for
//! the longest time. A recompute stands right before its backward, and runs while the device waits for
//! the gradient, if it does. An offload starts with the end of the forward and is back when the action
//! before the backward begins (PipeOffload, arXiv:2503.01328, finds that half of the activations can be
//! offloaded for free at usual link speeds).

use std::collections::{BTreeMap, HashMap};

use super::pipeline::Pipeline;
use super::state::Move;
use crate::cost::Costs;
use crate::ids::{MicroId, StageId};
use crate::schedule::{Action, ActionKind, Schedule};

/// Means to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    Recompute,
    Offload,
    /// The one that seems to cost less time.
    Either,
}

impl Means {
    /// Returns the means that the costs permit.
    pub(super) fn all(pipeline: &Pipeline) -> &'static [Self] {
        let any = |of: fn(&super::memory::StageBytes) -> bool| {
            pipeline.stages.iter().any(|stage| of(&stage.bytes))
        };
        match (any(|own| own.may_drop()), any(|own| own.may_leave())) {
            (false, false) => &[],
            (true, false) => &[Self::Recompute],
            (false, true) => &[Self::Offload],
            (true, true) => &[Self::Recompute, Self::Offload, Self::Either],
        }
    }

    /// Words for the name of a candidate.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Recompute => "recomputing",
            Self::Offload => "offloading",
            Self::Either => "recomputing and offloading",
        }
    }
}

/// A schedule with recomputes and offloads of single micro-batches.
#[derive(Clone)]
pub(super) struct Thinned {
    lists: Vec<Vec<Action>>,
    offloads: Vec<(StageId, MicroId)>,
}

impl Thinned {
    pub(super) fn lists(&self) -> &[Vec<Action>] {
        &self.lists
    }

    pub(super) fn offloads(&self) -> &[(StageId, MicroId)] {
        &self.offloads
    }

    /// The schedule, unchecked.
    pub(super) fn schedule(self, stages: usize, micro_batches: usize) -> Schedule {
        let schedule = Schedule::new("auto", stages, micro_batches, self.lists);
        schedule.with_offloads(self.offloads)
    }
}

/// Returns the actions of each device with as many recomputes and offloads as memory requires; none if
/// these do not suffice, or if none is necessary. Overlapped pairs run one action after the other.
///
/// # Complexity
/// O(actions · log actions).
pub(super) fn thinned(
    pipeline: &Pipeline,
    costs: &Costs,
    schedule: &Schedule,
    means: Means,
) -> Option<Thinned> {
    let mut all = Thinned {
        lists: Vec::with_capacity(schedule.devices()),
        offloads: Vec::new(),
    };
    let mut is_changed = false;
    for (device, list) in schedule.iter() {
        let own = Device::new(pipeline, costs, means, (device.index(), list));
        let (longer, offloads) = own.thinned()?;
        is_changed |= longer.len() > list.len() || !offloads.is_empty();
        all.lists.push(longer);
        let of = |action: Action| (action.stage, action.micro);
        all.offloads.extend(offloads.into_iter().map(of));
    }
    is_changed.then_some(all)
}

/// A device on its way through its list.
struct Device<'a> {
    pipeline: &'a Pipeline,
    costs: &'a Costs,
    means: Means,
    list: &'a [Action],
    cap: u64,
    bytes: u64,
    /// Index in the list at which the input gradient is made.
    backward: HashMap<(StageId, MicroId), usize>,
    /// Micro-batches that may still go: index of the backward to index of the forward.
    held: BTreeMap<usize, usize>,
    dropped: Vec<bool>,
    /// Offloaded micro-batches, by the index of the backward.
    away: BTreeMap<usize, Action>,
    made: Vec<bool>,
}

impl<'a> Device<'a> {
    fn new(
        pipeline: &'a Pipeline,
        costs: &'a Costs,
        means: Means,
        (device, list): (usize, &'a [Action]),
    ) -> Self {
        let own = &pipeline.devices[device];
        let gradients = list.iter().enumerate();
        let gradients = gradients.filter(|(_, action)| action.kind.gives_input_gradient());
        Self {
            pipeline,
            costs,
            means,
            list,
            cap: own.cap.unwrap_or(u64::MAX),
            bytes: own.at_first,
            backward: (gradients.map(|(at, action)| ((action.stage, action.micro), at))).collect(),
            held: BTreeMap::new(),
            dropped: vec![false; list.len()],
            away: BTreeMap::new(),
            made: vec![false; pipeline.stages.len()],
        }
    }

    /// Returns the longer list, and the offloaded forwards.
    fn thinned(mut self) -> Option<(Vec<Action>, Vec<Action>)> {
        let mut longer = Vec::with_capacity(self.list.len());
        for (at, &action) in self.list.iter().enumerate() {
            self.held.remove(&at);
            if self.dropped[at] {
                self.take(at, action, Move::Recompute)?;
                longer.push(action.with(ActionKind::Recompute));
            }
            if let Some(coming) = self.away.get(&(at + 1)) {
                self.bytes += self.pipeline.stages[coming.stage.index()].bytes.leaves();
            }
            match action.kind {
                ActionKind::Forward => self.forward(at, action)?,
                kind => self.take(at, action, Move::of(kind))?,
            }
            longer.push(action);
        }
        Some((longer, self.away.into_values().collect()))
    }

    /// Runs a forward, which keeps its activations or, if it is the one to go, drops them at once.
    fn forward(&mut self, at: usize, action: Action) -> Option<()> {
        let own = &self.pipeline.stages[action.stage.index()].bytes;
        let backward = self.backward.get(&(action.stage, action.micro)).copied();
        let Some(place) = backward.filter(|_| own.may_drop() || own.may_leave()) else {
            return self.take(at, action, Move::Forward);
        };
        let step = own.step(Move::Forward, false);
        let may_drop = own.may_drop() && self.means != Means::Offload;
        while !self.fits(step.during, step.after) {
            if self.make_room(at, place) {
                continue;
            }
            if may_drop {
                self.dropped[place] = true;
                return self.take(at, action, Move::Dropping);
            }
            if !self.make_room(at, 0) {
                return None;
            }
        }
        self.held.insert(place, at);
        self.take(at, action, Move::Forward)
    }

    /// Runs an action, and makes room for it if necessary; none if that does not suffice.
    fn take(&mut self, at: usize, action: Action, what: Move) -> Option<()> {
        let stage = action.stage.index();
        let first = action.kind.accumulates()
            && what != Move::Recompute
            && !std::mem::replace(&mut self.made[stage], true);
        let step = self.pipeline.stages[stage].bytes.step(what, first);
        while !self.fits(step.during, step.after) {
            if !self.make_room(at, 0) {
                return None;
            }
        }
        self.bytes = self.bytes.saturating_add_signed(step.after);
        Some(())
    }

    fn fits(&self, during: u64, after: i64) -> bool {
        self.bytes + during <= self.cap && self.bytes.saturating_add_signed(after) <= self.cap
    }

    /// Frees the micro-batch with the last backward after `place`; false if none can go.
    fn make_room(&mut self, at: usize, place: usize) -> bool {
        let behind = self.held.range(place + 1..).rev();
        let mut able = behind.filter_map(|(&place, &left)| {
            let offload = self.goes(at, (left, place))?;
            Some((place, left, offload))
        });
        let Some((place, left, offload)) = able.next() else {
            return false;
        };
        drop(able);
        self.held.remove(&place);
        let action = self.list[left];
        let own = &self.pipeline.stages[action.stage.index()].bytes;
        if offload {
            self.away.insert(place, action);
            self.bytes -= own.leaves();
        } else {
            self.dropped[place] = true;
            self.bytes -= own.step(Move::Recompute, false).after.unsigned_abs();
        }
        true
    }

    /// Whether a micro-batch with its forward at `left` and its backward at `back` is offloaded (true)
    /// or recomputed (false) for room at `at`; none if neither is possible.
    fn goes(&self, at: usize, (left, back): (usize, usize)) -> Option<bool> {
        let own = &self.pipeline.stages[self.list[left].stage.index()].bytes;
        // Gone when the action after the forward ends, and back in the action before the backward.
        let away = self.means != Means::Recompute && own.may_leave();
        let away = away && left + 2 <= at && at + 2 <= back;
        let drops = self.means != Means::Offload && own.may_drop();
        match (away, drops) {
            (false, false) => None,
            (true, true) => Some(self.is_cheaper_away(left, back)),
            (away, _) => Some(away),
        }
    }

    /// Whether waiting for both transfers, over free links, takes no longer than a recompute.
    fn is_cheaper_away(&self, left: usize, back: usize) -> bool {
        let time = |at: usize| {
            let action = self.list[at];
            self.costs.stage(action.stage).of(action.kind).get()
        };
        let stage = self.list[left].stage;
        let ways = self.costs.single_offload(stage);
        let leaving = ways.to_host.occupancy.get() + ways.to_host.latency.get();
        let coming = ways.to_device.occupancy.get() + ways.to_device.latency.get();
        // In equal parts, of which the first leaves as soon as it is made.
        let whole = 1.0 - 1.0 / f64::from(ways.pieces.max(1));
        let waits = (leaving - time(left) * whole - time(left + 1)).max(0.0)
            + (coming - time(back - 1)).max(0.0);
        waits <= self.pipeline.stages[stage.index()].recompute
    }
}
