//! Recomputes or offloads single micro-batches of a schedule until it fits the memory.
//!
//! Of those that a device holds when an action does not fit, the one goes first whose backward is
//! furthest away (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966):
//! it makes room for the longest. A recompute stands right before its backward, where it is done
//! while the device waits for the gradient, if it does. What is offloaded leaves from its forward on
//! and is back when the action before its backward begins (PipeOffload, arXiv:2503.01328, finds that
//! half of the activations leave for free where links are as fast as usual).

use std::collections::{BTreeMap, HashMap};

use super::pipeline::Pipeline;
use super::state::Move;
use crate::cost::Costs;
use crate::ids::{MicroId, StageId};
use crate::schedule::{Action, ActionKind, Schedule};

/// What makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    Recompute,
    Offload,
    /// Whichever seems to cost less time.
    Either,
}

impl Means {
    /// Those that the costs allow.
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

    /// In the name of a candidate.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Recompute => "recomputing",
            Self::Offload => "offloading",
            Self::Either => "recomputing and offloading",
        }
    }
}

/// What a schedule does where memory is short.
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

/// The actions of each device with as many recomputes, and as much offloaded, as memory asks for;
/// none where that is not enough, or where memory asks for nothing. Overlapped pairs are done one
/// action after the other.
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
    /// Where in the list the gradient of the inputs is made.
    backward: HashMap<(StageId, MicroId), usize>,
    /// What may still go, by the place of its backward: the place of its forward.
    held: BTreeMap<usize, usize>,
    dropped: Vec<bool>,
    /// What is offloaded, by the place of its backward.
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

    /// The longer list, and what is offloaded.
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

    /// A forward that keeps its activations, or drops them at once where it is the one to go.
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

    /// Does an action, for which others go where it does not fit; none where that is not enough.
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

    /// At the action at `at`, whether something goes whose backward is behind `place`.
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

    /// Whether what has `left` at a place and goes back at another is offloaded, or else recomputed,
    /// so that there is room at the action at `at`; none where neither can be.
    fn goes(&self, at: usize, (left, back): (usize, usize)) -> Option<bool> {
        let own = &self.pipeline.stages[self.list[left].stage.index()].bytes;
        // Gone when the action after the forward is over, and here again in the one before the backward.
        let away = self.means != Means::Recompute && own.may_leave();
        let away = away && left + 2 <= at && at + 2 <= back;
        let drops = self.means != Means::Offload && own.may_drop();
        match (away, drops) {
            (false, false) => None,
            (true, true) => Some(self.is_cheaper_away(left, back)),
            (away, _) => Some(away),
        }
    }

    /// Whether the device waits no longer for the ways to the host and back, over links that are
    /// free, than a recompute takes.
    fn is_cheaper_away(&self, left: usize, back: usize) -> bool {
        let time = |at: usize| {
            let action = self.list[at];
            self.costs.stage(action.stage).of(action.kind).get()
        };
        let stage = self.list[left].stage;
        let ways = self.costs.single_offload(stage);
        let leaving = ways.to_host.occupancy.get() + ways.to_host.latency.get();
        let coming = ways.to_device.occupancy.get() + ways.to_device.latency.get();
        // In equal parts, of which the first leaves when it is made.
        let whole = 1.0 - 1.0 / f64::from(ways.pieces.max(1));
        let waits = (leaving - time(left) * whole - time(left + 1)).max(0.0)
            + (coming - time(back - 1)).max(0.0);
        waits <= self.pipeline.stages[stage.index()].recompute
    }
}
