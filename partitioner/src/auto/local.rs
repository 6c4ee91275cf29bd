//! Local search over schedules: moves actions on the critical path.
//!
//! Of two consecutive actions of a device on the critical path, one is moved past the other, and
//! sometimes past some more (van Laarhoven, Aarts and Lenstra, "Job shop scheduling by simulated
//! annealing", 1992: only such moves can shorten a schedule at once). A move is kept if the result
//! is no worse than the schedule some moves ago (Burke and Bykov, "The late acceptance
//! hill-climbing heuristic", 2017). Memory is a hard limit. The moves come from a fixed seed.

use super::pipeline::{Pipeline, Way};
use super::state::Move;
use crate::ids::StageId;
use crate::schedule::{Action, ActionKind};

/// Length of the acceptance history: one in so many of all moves, with a minimum.
const LATE: usize = 64;
const LEAST_LATE: usize = 64;
/// Most actions that one is moved past.
const FAR: u64 = 6;

/// Moves actions of `lists` `moves` times, or until the makespan is at most `enough`. *Returns*
/// better lists, if any are found.
///
/// # Complexity
/// O(moves · actions).
pub(super) fn improve(
    pipeline: &Pipeline,
    lists: &[Vec<Action>],
    moves: usize,
    enough: f64,
) -> Option<Vec<Vec<Action>>> {
    let mut replay = Replay::new(pipeline, lists);
    let mut lists = lists.to_vec();
    let mut current = replay.makespan(&lists)?;
    let (mut best, mut found) = (current, None);
    let mut late = Late::new(moves, current);
    let mut pairs = replay.pairs();
    let mut random = Random::default();
    for turn in 0..moves {
        if pairs.is_empty() || best <= enough {
            break;
        }
        let (device, place) = pairs[random.below(pairs.len() as u64) as usize];
        let (from, to) = random.span(place, lists[device].len());
        if !turned(&mut lists[device], from, to) {
            continue;
        }
        let after = (replay.fits(device, &lists[device])).then(|| replay.makespan(&lists));
        match after.flatten() {
            Some(after) if after <= current || after <= late.at(turn) => {
                current = after;
                pairs = replay.pairs();
                if current < best {
                    best = current;
                    found = Some(lists.clone());
                }
            }
            _ => shift(&mut lists[device], to, from),
        }
        late.set(turn, current);
    }
    found
}

/// Ring buffer of the makespans of the latest moves.
pub(super) struct Late(Vec<f64>);

impl Late {
    pub(super) fn new(moves: usize, first: f64) -> Self {
        Self(vec![first; (moves / LATE).max(LEAST_LATE)])
    }

    pub(super) fn at(&self, turn: usize) -> f64 {
        self.0[turn % self.0.len()]
    }

    pub(super) fn set(&mut self, turn: usize, makespan: f64) {
        let slot = turn % self.0.len();
        self.0[slot] = makespan;
    }
}

/// SplitMix64.
#[derive(Default)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % end
    }

    /// Returns the old and the new index of an action: the one at `place` moves before its
    /// predecessor, or the predecessor moves behind it, or further.
    pub(super) fn span(&mut self, place: usize, end: usize) -> (usize, usize) {
        let further = match self.below(3) {
            0 => self.below(FAR) as usize,
            _ => 0,
        };
        if self.below(2) == 0 {
            (place, (place - 1).saturating_sub(further))
        } else {
            (place - 1, (place + further).min(end - 1))
        }
    }
}

pub(super) fn shift(list: &mut [Action], from: usize, to: usize) {
    if from > to {
        list[to..=from].rotate_right(1);
    } else {
        list[from..=to].rotate_left(1);
    }
}

/// Moves an action, if it may pass all others on its way.
pub(super) fn turned(list: &mut [Action], from: usize, to: usize) -> bool {
    let action = list[from];
    let passed = if from > to {
        &list[to..from]
    } else {
        &list[from + 1..=to]
    };
    let stays = |other: &Action| {
        let same = |of: fn(ActionKind) -> bool| of(action.kind) && of(other.kind);
        other.stage == action.stage
            && (other.micro == action.micro
                || same(|kind| kind == ActionKind::Forward)
                || same(ActionKind::gives_input_gradient)
                || same(ActionKind::accumulates))
    };
    let may = !passed.iter().any(stays);
    if may {
        shift(list, from, to);
    }
    may
}

/// Replay of lists, to find the makespan and the critical path.
pub(super) struct Replay<'a> {
    pipeline: &'a Pipeline,
    /// By stage and micro-batch: time at which input and gradient are ready, and the action (device
    /// and index) that produced them.
    inputs: Vec<Option<(f64, (usize, usize))>>,
    gradients: Vec<Option<(f64, (usize, usize))>>,
    /// By device and index: the action that was waited for last.
    before: Vec<Vec<Option<(usize, usize)>>>,
    ends: Vec<Vec<f64>>,
    links: Vec<f64>,
    /// By stage and micro-batch: whether a separate action recomputes.
    dropped: Vec<bool>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(pipeline: &'a Pipeline, lists: &[Vec<Action>]) -> Self {
        let cells = pipeline.stages.len() * pipeline.micro_batches;
        let mut dropped = vec![false; cells];
        let all = lists.iter().flatten();
        for action in all.filter(|action| action.kind == ActionKind::Recompute) {
            dropped[action.stage.index() * pipeline.micro_batches + action.micro.index()] = true;
        }
        Self {
            dropped,
            pipeline,
            inputs: vec![None; cells],
            gradients: vec![None; cells],
            before: lists.iter().map(|list| vec![None; list.len()]).collect(),
            ends: lists.iter().map(|list| vec![0.0; list.len()]).collect(),
            links: vec![0.0; pipeline.links],
        }
    }

    /// Returns the makespan; none if devices wait for each other.
    pub(super) fn makespan(&mut self, lists: &[Vec<Action>]) -> Option<f64> {
        self.inputs.fill(None);
        self.gradients.fill(None);
        self.links.fill(0.0);
        let mut heads = vec![0; lists.len()];
        let mut left: usize = lists.iter().map(Vec::len).sum();
        let mut queue: Vec<usize> = (0..lists.len()).rev().collect();
        let mut makespan = 0.0_f64;
        while let Some(device) = queue.pop() {
            while let Some(&action) = lists[device].get(heads[device]) {
                let Some((end, wakes)) = self.run(device, heads[device], action) else {
                    break;
                };
                makespan = makespan.max(end);
                heads[device] += 1;
                left -= 1;
                queue.extend(wakes.filter(|&other| other != device));
            }
        }
        (left == 0).then_some(makespan)
    }

    /// Returns an action's end, and the device that may then go on; none if it cannot begin yet.
    fn run(&mut self, device: usize, place: usize, action: Action) -> Option<(f64, Option<usize>)> {
        let (stage, m) = (action.stage.index(), self.pipeline.micro_batches);
        let own = &self.pipeline.stages[stage];
        let cell = stage * m + action.micro.index();
        let last = stage + 1 == self.pipeline.stages.len();
        let (ready, source) = match action.kind {
            ActionKind::Forward if stage > 0 => self.inputs[cell].map(|(at, by)| (at, Some(by)))?,
            ActionKind::Backward | ActionKind::BackwardInput => {
                self.gradients[cell].map(|(at, by)| (at, Some(by)))?
            }
            _ => (0.0, None),
        };
        let free = place
            .checked_sub(1)
            .map_or(0.0, |before| self.ends[device][before]);
        let start = free.max(ready);
        let end = start + own.times.of(action.kind).get();
        let previous = place.checked_sub(1).map(|before| (device, before));
        self.before[device][place] = if ready > free {
            source
        } else {
            previous.or(source)
        };
        self.ends[device][place] = end;
        let by = (device, place);
        let to = match action.kind {
            ActionKind::Forward if last => {
                self.gradients[cell] = Some((end, by));
                None
            }
            ActionKind::Forward => {
                self.inputs[cell + m] = Some((self.send(own.onward, end), by));
                Some(stage + 1)
            }
            ActionKind::Backward | ActionKind::BackwardInput if stage > 0 => {
                self.gradients[cell - m] = Some((self.send(own.back, end), by));
                Some(stage - 1)
            }
            _ => None,
        };
        Some((end, to.map(|stage| self.pipeline.stages[stage].device)))
    }

    fn send(&mut self, way: Option<Way>, end: f64) -> f64 {
        let Some(way) = way else { return end };
        let link = &mut self.links[way.link];
        *link = end.max(*link) + way.occupancy;
        *link + way.latency
    }

    /// Device and index of each action that waits only for its predecessor on the device, along the
    /// critical path of the last replay.
    pub(super) fn pairs(&self) -> Vec<(usize, usize)> {
        let lasts = self.ends.iter().enumerate().filter_map(|(device, ends)| {
            let place = ends.len().checked_sub(1)?;
            Some((ends[place], (device, place)))
        });
        let mut here = lasts.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, at)| at);
        let mut pairs = Vec::new();
        while let Some((device, place)) = here {
            here = self.before[device][place];
            if place > 0 && here == Some((device, place - 1)) {
                pairs.push((device, place));
            }
        }
        pairs
    }

    fn fits(&self, device: usize, list: &[Action]) -> bool {
        let own = &self.pipeline.devices[device];
        let Some(cap) = own.cap else { return true };
        let mut bytes = own.at_first;
        let mut made = vec![false; self.pipeline.stages.len()];
        list.iter().all(|action| {
            let StageId(stage) = action.stage;
            let cell = stage * self.pipeline.micro_batches + action.micro.index();
            let what = match Move::of(action.kind) {
                Move::Forward if self.dropped[cell] => Move::Dropping,
                what => what,
            };
            let first = action.kind.accumulates() && !std::mem::replace(&mut made[stage], true);
            let step = self.pipeline.stages[stage].bytes.step(what, first);
            let during = bytes + step.during;
            bytes = bytes.saturating_add_signed(step.after);
            during <= cap && bytes <= cap
        })
    }
}
