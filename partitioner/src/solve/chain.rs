//! The problem in integers, so that equal stages have equal costs and comparisons are exact.
//!
//! Times become multiples of a tick, a power of two so small that the whole chain has about 2^50 of
//! them: whole microseconds stay exact, other times are rounded by no more than f64 rounds a sum of
//! that size.

use super::Transfer;
use super::memory::{AWAY, Held, MODES, Memory, PLAIN, REDO};
use super::problem::Problem;
use crate::machine::Way;
use crate::profile::LayerCost;
use crate::units::Micros;

/// Upper bound of the chain's length in ticks plus the longest transfer, on a device of speed 1.
const SPAN: f64 = (1_u64 << 50) as f64;
/// Most ticks of a transfer.
const LONGEST: f64 = (1_u64 << 60) as f64;

/// The last layers of a stage so far, as a candidate of the searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) mode: usize,
}

/// The instance that the searches work on.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) layers: usize,
    pub(super) stages: usize,
    /// Modes that stages may choose from.
    pub(super) modes: Vec<usize>,
    /// Distinct prefix sums of work in ticks.
    rows: Vec<Vec<i64>>,
    /// Per mode and stage, the row's index.
    row_of: [Vec<usize>; MODES],
    /// Prefix sums of the transfer time to the host's memory, if stages may offload.
    away: Option<Vec<i64>>,
    /// Prefix sums of the host's submission times, jointly and in halves, without recompute and
    /// with it; none if they do not matter.
    hosts: Option<[[Vec<i64>; 2]; 2]>,
    /// By stage: whether its backward is in halves, and whether it has activations to offload.
    split: Vec<bool>,
    leaves: Vec<bool>,
    /// By link: ticks that the previous stage waits at a cut before layer k.
    waits: Vec<Vec<i64>>,
    /// By link: ticks that the link is busy at a cut before layer k.
    busy: Vec<Vec<i64>>,
    /// Link that the cut after a stage crosses; none within a device.
    crosses: Vec<Option<usize>>,
    /// Bytes sent at a cut before layer k.
    outputs: Vec<u64>,
    pub(super) memory: Memory,
    pub(super) held: Vec<Held>,
    pub(super) device: Vec<usize>,
    /// Per device.
    pub(super) caps: Vec<Option<u64>>,
    /// Prefix sums of the weights for even filling: the work of each layer, but at most a few times
    /// the median, so that one giant does not leave the others unordered.
    pub(super) even: Vec<i64>,
    /// Shares of the work, from 0 to 1: per stage boundary the share of the devices before it.
    pub(super) shares: Vec<f64>,
    tick: f64,
}

impl Chain {
    /// # Complexity
    /// O(layers · distinct speeds + stages).
    pub(super) fn new(problem: &Problem) -> Self {
        let costs = &problem.costs;
        let (links, crosses) = problem.links();
        let longest = |cost: &LayerCost| {
            let times = links.iter().map(|&way| problem.transfer_at(cost, way).0);
            times.fold(0.0, |most: f64, time| most.max(time.get()))
        };
        let total = costs
            .iter()
            .map(|c| work(c, true, REDO).max(work(c, false, REDO)))
            .sum::<f64>()
            + costs.iter().map(longest).fold(0.0, f64::max);
        let tick = if total > 0.0 {
            (total / SPAN).log2().ceil().exp2()
        } else {
            1.0
        };
        let mut chain = Self {
            layers: costs.len(),
            stages: problem.stages.len(),
            modes: problem.modes(),
            rows: Vec::new(),
            row_of: Default::default(),
            away: None,
            hosts: None,
            split: problem.stages.iter().map(|slot| slot.split).collect(),
            leaves: problem.stages.iter().map(|slot| slot.leaves).collect(),
            waits: Vec::new(),
            busy: Vec::new(),
            crosses,
            outputs: (std::iter::once(0))
                .chain(costs.iter().map(|cost| cost.output.0))
                .collect(),
            memory: problem.memory(),
            held: problem.stages.iter().map(|slot| slot.held).collect(),
            device: problem.stages.iter().map(|s| s.device.0).collect(),
            caps: problem
                .machine
                .devices()
                .iter()
                .map(|d| d.memory.map(|m| m.0))
                .collect(),
            even: even(problem, tick),
            shares: shares(problem),
            tick,
        };
        chain.add_rows(problem);
        for way in links {
            chain.add_transfers(problem, way);
        }
        chain.add_others(problem);
        chain
    }

    fn add_rows(&mut self, problem: &Problem) {
        let mut known = std::collections::HashMap::new();
        for stage in &problem.stages {
            let speed = problem.machine.devices()[stage.device.0].speed;
            for mode in 0..MODES {
                let redo = mode & REDO;
                let row = *known
                    .entry((speed.to_bits(), stage.split, redo))
                    .or_insert_with(|| {
                        let ticks = |cost| (work(cost, stage.split, redo) / self.tick).round();
                        let mut sum = 0.0;
                        // Sums of integers below 2^51 are exact in f64; only the division by the
                        // speed rounds, and it keeps their order.
                        let running = problem.costs.iter().map(|cost| {
                            sum += ticks(cost);
                            (sum / speed).round() as i64
                        });
                        self.rows.push(std::iter::once(0).chain(running).collect());
                        self.rows.len() - 1
                    });
                self.row_of[mode].push(row);
            }
        }
    }

    fn add_transfers(&mut self, problem: &Problem, way: Way) {
        let ticks = |time: Micros| (time.get() / self.tick).min(LONGEST).round() as i64;
        let mut waits = vec![0];
        let mut busy = vec![0];
        for cost in &problem.costs {
            let (wait, link) = problem.transfer_at(cost, way);
            waits.push(if problem.transfer == Transfer::Waited {
                ticks(wait)
            } else {
                0
            });
            busy.push(ticks(link));
        }
        // The model's output is not sent on.
        waits[self.layers] = 0;
        busy[self.layers] = 0;
        self.waits.push(waits);
        self.busy.push(busy);
    }

    /// Adds the other bounds of a stage: host and offload.
    fn add_others(&mut self, problem: &Problem) {
        let (tick, costs) = (self.tick, &problem.costs);
        let sums = |of: &dyn Fn(&LayerCost) -> Micros| -> Vec<i64> {
            let mut sum = 0_i64;
            let running = costs.iter().map(|cost| {
                let ticks = (of(cost).get() / tick).min(LONGEST).round() as i64;
                sum = sum.saturating_add(ticks).min(LONGEST as i64);
                sum
            });
            std::iter::once(0).chain(running).collect()
        };
        if self.modes.iter().any(|mode| mode & AWAY != 0) {
            self.away = Some(sums(&|cost| problem.moves(cost)));
        }
        let host = |split, redo| sums(&|cost| problem.submits(cost, split, redo));
        let hosts = [false, true].map(|split| [false, true].map(|redo| host(split, redo)));
        let matters = hosts.iter().flatten().any(|row| row[self.layers] > 0);
        self.hosts = matters.then_some(hosts);
    }

    /// Returns the prefix sums of a stage's work.
    pub(super) fn row(&self, stage: usize, mode: usize) -> &[i64] {
        &self.rows[self.row_of[mode][stage]]
    }

    /// Ticks that a stage which ends before layer `end` waits for transfers.
    pub(super) fn wait(&self, stage: usize, end: usize) -> i64 {
        self.crosses[stage].map_or(0, |link| self.waits[link][end])
    }

    /// Ticks that the link after a stage which ends before layer `end` is busy.
    pub(super) fn busy(&self, stage: usize, end: usize) -> i64 {
        self.crosses[stage].map_or(0, |link| self.busy[link][end])
    }

    /// Bytes that a stage which ends before layer `end` sends to another device.
    pub(super) fn sent(&self, stage: usize, end: usize) -> u64 {
        self.crosses[stage].map_or(0, |_| self.outputs[end])
    }

    /// Ticks of a stage with the layers `part.start..end`, including the link after it.
    pub(super) fn cost(&self, stage: usize, part: Part, end: usize) -> i64 {
        let row = self.row(stage, part.mode);
        let work = row[end] - row[part.start] + self.wait(stage, end);
        let cost = work.max(self.busy(stage, end));
        cost.max(self.beside(stage, part, end))
    }

    /// Ticks of the stage's host, and of the link to the host's memory.
    fn beside(&self, stage: usize, part: Part, end: usize) -> i64 {
        let of = |row: &Vec<i64>| row[end] - row[part.start];
        let redo = part.mode & REDO != 0;
        let leaves = part.mode & AWAY != 0 && !redo && self.leaves[stage];
        let away = self.away.as_ref().filter(|_| leaves).map_or(0, of);
        let hosts = self.hosts.as_ref();
        let host = hosts.map_or(0, |hosts| {
            of(&hosts[usize::from(self.split[stage])][usize::from(redo)])
        });
        away.max(host)
    }

    /// Whether a stage has activations to offload.
    pub(super) fn leaves(&self, stage: usize) -> bool {
        self.leaves[stage]
    }

    /// Returns the cost of the costliest stage.
    pub(super) fn bottleneck(&self, cut: &Cut) -> i64 {
        let stage = |stage: usize| self.cost(stage, cut.parts[stage], cut.end(stage, self));
        (0..self.stages).map(stage).max().unwrap_or(0)
    }

    /// Upper bound of the cost of a stage.
    pub(super) fn longest(&self) -> i64 {
        let work = self.rows.iter().map(|row| row[self.layers]).max();
        let transfer = self.waits.iter().chain(&self.busy).flatten().max();
        let work = work.unwrap_or(0) + transfer.copied().unwrap_or(0);
        let others = (self.hosts.iter().flatten().flatten()).chain(&self.away);
        others
            .map(|row| row[self.layers])
            .fold(work, |most, other| most.max(other))
    }

    /// Bytes of a stage with the layers `part.start..end`.
    pub(super) fn bytes(&self, stage: usize, part: Part, end: usize) -> u64 {
        let held = self.held[stage];
        // Without activations to offload, the offload mode has no effect.
        let away = if self.leaves[stage] { AWAY } else { PLAIN };
        let mode = part.mode & (REDO | away);
        self.memory.bytes(mode, held, part.start, end)
    }

    /// Returns the limit of a stage's device, raised by `slack`.
    pub(super) fn cap(&self, stage: usize, slack: u64) -> Option<u64> {
        self.caps[self.device[stage]].map(|cap| cap.saturating_add(slack))
    }

    /// Same as [`cap`](Self::cap), but none if a stage of all layers would fit.
    pub(super) fn limit(&self, stage: usize, slack: u64) -> Option<u64> {
        let (start, mode) = (0, self.modes[0]);
        let most = self.bytes(stage, Part { start, mode }, self.layers);
        self.cap(stage, slack).filter(|&cap| most > cap)
    }

    /// Returns the bytes per device, summed over its stages.
    pub(super) fn device_bytes(&self, cut: &Cut) -> Vec<u64> {
        let mut bytes = vec![0_u64; self.caps.len()];
        for (stage, &part) in cut.parts.iter().enumerate() {
            let device = &mut bytes[self.device[stage]];
            *device = device.saturating_add(self.bytes(stage, part, cut.end(stage, self)));
        }
        bytes
    }

    /// Converts ticks to a time.
    pub(super) fn micros(&self, ticks: i64) -> Micros {
        Micros::saturating(ticks as f64 * self.tick)
    }
}

/// A cut of the chain: the start of each stage, and its mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) parts: Vec<Part>,
}

impl Cut {
    pub(super) fn end(&self, stage: usize, chain: &Chain) -> usize {
        self.parts
            .get(stage + 1)
            .map_or(chain.layers, |next| next.start)
    }
}

/// Returns the microseconds of one micro-batch on one layer, on a device of speed 1.
fn work(cost: &LayerCost, split: bool, mode: usize) -> f64 {
    let backward = if split {
        cost.input + cost.weight
    } else {
        cost.backward
    };
    let again = if mode & REDO != 0 {
        cost.recompute
    } else {
        Micros::ZERO
    };
    cost.forward.get() + backward.get() + again.get()
}

/// See [`Chain::even`]; every layer has some weight, even one that takes no time.
fn even(problem: &Problem, tick: f64) -> Vec<i64> {
    let mut ticks: Vec<i64> = problem
        .costs
        .iter()
        .map(|c| (work(c, true, PLAIN) / tick) as i64)
        .collect();
    let mut sorted = ticks.clone();
    let middle = sorted.len() / 2;
    let (_, &mut median, _) = sorted.select_nth_unstable(middle);
    let most = median.saturating_mul(4).max(1);
    let mut sum = 0;
    for ticks in &mut ticks {
        sum += (*ticks).clamp(1, most);
        *ticks = sum;
    }
    ticks.insert(0, 0);
    ticks
}

/// Returns, for each boundary, the share of the work of the devices before it.
fn shares(problem: &Problem) -> Vec<f64> {
    let mut sum = 0.0;
    let mut shares = vec![0.0];
    for stage in &problem.stages {
        sum += problem.machine.devices()[stage.device.0].speed;
        shares.push(sum);
    }
    shares.iter().map(|share| share / sum).collect()
}
