//! List scheduler that follows the order of a building block.
//!
//! A free device runs, among its passes whose input is ready, the first one in the block's order; a
//! forward only if the passes before it in the block still fit the memory then. Weight gradients run
//! when nothing else can, or to free memory.

use super::pattern::{Block, MOST_CHUNKS, passes};
use super::pipeline::{Pipeline, Way};
use super::state::Move;
use crate::schedule::{Action, ActionKind};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// Most passes of a device for a micro-batch, without weight gradients.
const PASSES: usize = 2 * MOST_CHUNKS;

/// Tie-breaking rule; none dominates, so all four are tried.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    /// Whether forwards stay in the order of the block.
    strict: bool,
    /// Whether weight gradients wait if another input is known to arrive before their end.
    patient: bool,
}

impl Rule {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..4).map(|bits| Self {
            strict: bits & 1 != 0,
            patient: bits & 2 != 0,
        })
    }
}

/// Relaxation of the memory cap, from a micro-batch on.
#[derive(Clone, Copy)]
pub(super) struct More {
    /// Extra micro-batches of a chunk that may be in flight.
    pub(super) chunks: usize,
    pub(super) from: usize,
}

impl More {
    pub(super) const NONE: Self = Self { chunks: 0, from: 0 };

    /// Returns the bytes that a device may hold then.
    fn cap(self, pipeline: &Pipeline, own: &super::pipeline::Device) -> Option<u64> {
        let kept = own
            .stages
            .iter()
            .map(|&stage| pipeline.stages[stage].bytes.kept());
        Some(own.cap? + self.chunks as u64 * kept.max().unwrap_or_default())
    }
}

/// Returns the devices' lists; none if memory is short, or if they take `upper` microseconds or
/// longer.
///
/// # Complexity
/// O(actions · log devices), for blocks of a few periods.
pub(super) fn lists(
    pipeline: &Pipeline,
    more: More,
    (block, rule): (&Block, Rule),
    upper: f64,
) -> Option<Vec<Vec<Action>>> {
    let mut run = Run::new(pipeline, more, (block, rule));
    let is_done = run.run(upper);
    is_done.then(|| run.devices.into_iter().map(|own| own.list).collect())
}

/// Time at which a device may go on.
#[derive(Clone, Copy, PartialEq)]
struct Event {
    at: f64,
    device: usize,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        // Reversed: the heap must return the earliest event first.
        (other.at.total_cmp(&self.at)).then(other.device.cmp(&self.device))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Next action of a device: one of its passes, or its oldest pending weight gradient.
#[derive(Clone, Copy, PartialEq)]
enum Choice {
    Pass(usize),
    Weight,
}

struct Device {
    list: Vec<Action>,
    /// Passes of the device, as places in the chain, and the next micro-batch of each.
    passes: Vec<usize>,
    next: [usize; PASSES],
    free: f64,
    /// Time of the remaining work.
    left: f64,
    bytes: u64,
    /// Caps of `bytes`: for forwards before `from`, and from `from` on.
    caps: [u64; 2],
    owed: VecDeque<Action>,
}

struct Run<'a> {
    pipeline: &'a Pipeline,
    block: &'a Block,
    rule: Rule,
    from: usize,
    devices: Vec<Device>,
    /// Time at which the input at each place in the chain is ready, by micro-batch.
    there: Vec<f64>,
    links: Vec<f64>,
    /// By stage, whether gradients of parameters exist.
    made: Vec<bool>,
    events: BinaryHeap<Event>,
}

impl<'a> Run<'a> {
    fn new(pipeline: &'a Pipeline, more: More, (block, rule): (&'a Block, Rule)) -> Self {
        let (stages, m) = (pipeline.stages.len(), pipeline.micro_batches);
        let mut there = vec![f64::INFINITY; 2 * stages * m];
        there[..m].fill(0.0);
        let device = |own: &super::pipeline::Device| Device {
            list: Vec::with_capacity(3 * own.stages.len() * m),
            passes: passes(&own.stages, stages).collect(),
            next: [0; PASSES],
            free: 0.0,
            left: m as f64 * (own.forward + own.backward),
            bytes: own.at_first,
            caps: [own.cap, more.cap(pipeline, own)].map(|cap| cap.unwrap_or(u64::MAX)),
            owed: VecDeque::new(),
        };
        let events = (0..pipeline.devices.len()).map(|device| Event { at: 0.0, device });
        Self {
            devices: pipeline.devices.iter().map(device).collect(),
            pipeline,
            block,
            rule,
            from: more.from,
            there,
            links: vec![0.0; pipeline.links],
            made: vec![false; stages],
            events: events.collect(),
        }
    }

    /// Runs to the end; false if it reaches `upper` or gets stuck.
    fn run(&mut self, upper: f64) -> bool {
        while let Some(Event { at, device }) = self.events.pop() {
            let own = &self.devices[device];
            if own.free > at {
                continue;
            }
            if at + own.left >= upper {
                return false;
            }
            if let Some(choice) = self.choose(device, at) {
                self.act(device, choice, at);
            }
        }
        let m = self.pipeline.micro_batches;
        self.devices.iter().all(|own| {
            let mut counts = own.next[..own.passes.len()].iter();
            own.owed.is_empty() && counts.all(|&count| count == m)
        })
    }

    fn choose(&self, device: usize, now: f64) -> Option<Choice> {
        let own = &self.devices[device];
        let (order, passes) = self.upcoming(own, own.next);
        let order = &order[..passes];
        for (place, &(_, pass)) in order.iter().enumerate() {
            if self.there(own, pass) > now {
                continue;
            }
            let (stage, what) = self.what(own, pass);
            if what != Move::Forward {
                if self.fits(own, (stage, what), own.next[pass]) {
                    return Some(Choice::Pass(pass));
                }
                break;
            }
            if self.rule.strict && place > 0 || !self.leaves_room(device, pass) {
                continue;
            }
            if self.fits(own, (stage, what), own.next[pass]) {
                return Some(Choice::Pass(pass));
            }
            return (!own.owed.is_empty()).then_some(Choice::Weight);
        }
        let weight = own.owed.front()?;
        let end = now
            + self.pipeline.stages[weight.stage.index()]
                .times
                .weight
                .get();
        let soon = |&(_, pass): &(usize, usize)| {
            let at = self.there(own, pass);
            now < at && at < end
        };
        let waits = self.rule.patient && order.iter().any(soon);
        (!waits).then_some(Choice::Weight)
    }

    /// Returns the stage of a pass, and its move.
    fn what(&self, own: &Device, pass: usize) -> (usize, Move) {
        let (place, stages) = (own.passes[pass], self.pipeline.stages.len());
        if place < stages {
            return (place, Move::Forward);
        }
        let stage = 2 * stages - 1 - place;
        match self.pipeline.stages[stage].halves {
            Some(_) => (stage, Move::Input),
            None => (stage, Move::Joint),
        }
    }

    /// Returns when the input of the next micro-batch of a pass is ready.
    fn there(&self, own: &Device, pass: usize) -> f64 {
        self.there[own.passes[pass] * self.pipeline.micro_batches + own.next[pass]]
    }

    /// Returns a device's passes with micro-batches left, by the slot of the next one, and their number.
    fn upcoming(&self, own: &Device, next: [usize; PASSES]) -> ([(usize, usize); PASSES], usize) {
        let (mut all, mut count) = ([(usize::MAX, 0); PASSES], 0);
        for (pass, &place) in own.passes.iter().enumerate() {
            if next[pass] < self.pipeline.micro_batches {
                all[count] = (self.block.slot(place, next[pass]), pass);
                count += 1;
            }
        }
        all[..count].sort_unstable();
        (all, count)
    }

    fn fits(&self, own: &Device, (stage, what): (usize, Move), micro: usize) -> bool {
        let cap = own.caps[usize::from(what != Move::Forward || micro >= self.from)];
        let step = (self.pipeline.stages[stage].bytes).step(what, !self.made[stage]);
        own.bytes + step.during <= cap && own.bytes.saturating_add_signed(step.after) <= cap
    }

    /// Whether the passes before a forward in the block still fit if the forward is done first and
    /// weight gradients run in time.
    fn leaves_room(&self, device: usize, pass: usize) -> bool {
        let own = &self.devices[device];
        let cap = own.caps[usize::from(own.next[pass] >= self.from)];
        if cap == u64::MAX {
            return true;
        }
        let (last, forwards) = (own.passes.len() - 1, own.passes.len() / 2);
        let takes = |pass: usize| {
            let stage = own.passes[pass.min(last - pass)];
            let step = self.pipeline.stages[stage].bytes.step(Move::Forward, false);
            step.after.unsigned_abs()
        };
        let mut held = self.pipeline.devices[device].at_first + takes(pass);
        for forward in 0..forwards {
            held += takes(forward) * (own.next[forward] - own.next[last - forward]) as u64;
        }
        let slot = self.block.slot(own.passes[pass], own.next[pass]);
        let mut next = own.next;
        while held <= cap {
            let (order, count) = self.upcoming(own, next);
            match order[..count].iter().find(|(_, other)| *other != pass) {
                Some(&(at, other)) if at < slot => {
                    next[other] += 1;
                    if other < forwards {
                        held += takes(other);
                    } else {
                        held = held.saturating_sub(takes(other));
                    }
                }
                _ => return true,
            }
        }
        false
    }

    fn act(&mut self, device: usize, choice: Choice, now: f64) {
        let (action, what, place) = self.next(device, choice);
        let stage = action.stage.index();
        let own = &mut self.devices[device];
        let times = &self.pipeline.stages[stage];
        let first = action.kind.accumulates() && !std::mem::replace(&mut self.made[stage], true);
        let step = times.bytes.step(what, first);
        own.bytes = own.bytes.saturating_add_signed(step.after);
        let time = times.times.of(action.kind).get();
        let end = now + time;
        own.free = end;
        own.left -= time;
        own.list.push(action);
        self.events.push(Event { at: end, device });
        let stages = self.pipeline.stages.len();
        let (way, target) = match what {
            Move::Forward if stage + 1 == stages => (None, stage),
            Move::Forward => (times.onward, stage + 1),
            Move::Input | Move::Joint if stage > 0 => (times.back, stage - 1),
            _ => return,
        };
        let at = self.send(way, end);
        let cell = (place + 1) * self.pipeline.micro_batches + action.micro.index();
        self.there[cell] = at;
        let device = self.pipeline.stages[target].device;
        self.events.push(Event { at, device });
    }

    /// Takes the next action of a choice, with its place in the chain.
    fn next(&mut self, device: usize, choice: Choice) -> (Action, Move, usize) {
        let Choice::Pass(pass) = choice else {
            // `choose` returns a weight gradient only if one is pending.
            let owed = self.devices[device].owed.pop_front();
            return (owed.expect("it is owed"), Move::Weight, 0);
        };
        let (stage, what) = self.what(&self.devices[device], pass);
        let own = &mut self.devices[device];
        let action = |kind| Action::new(stage, kind, own.next[pass]);
        let action = match what {
            Move::Forward => action(ActionKind::Forward),
            Move::Joint => action(ActionKind::Backward),
            _ => action(ActionKind::BackwardInput),
        };
        if what == Move::Input {
            own.owed.push_back(action.with(ActionKind::BackwardWeight));
        }
        own.next[pass] += 1;
        (action, what, own.passes[pass])
    }

    fn send(&mut self, way: Option<Way>, end: f64) -> f64 {
        let Some(way) = way else { return end };
        let link = &mut self.links[way.link];
        *link = end.max(*link) + way.occupancy;
        *link + way.latency
    }
}
