//! Peak memory of a stage.

use std::ops::Range;

use crate::cost::StageMemory;
use crate::profile::LayerCost;
use crate::schedule::ActionKind;
use crate::units::Bytes;

/// Treatment of a stage's activations until the backward, as two bits: offload, and recompute (with offload:
/// of the recompute's inputs). Less costly ones come first.
pub(super) const PLAIN: usize = 0;
pub(super) const AWAY: usize = 1;
pub(super) const REDO: usize = 2;
/// Number of modes.
pub(super) const MODES: usize = 4;

/// Peak numbers of micro-batches that a stage holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// From the forward to the end of the backward.
    pub(super) in_flight: u64,
    /// From the start of the backward to its end: 1, or more if weight passes wait.
    pub(super) backward: u64,
    /// On the device if the stage offloads: of those in flight, those that leave, come back or are in use.
    pub(super) offloading: u64,
}

impl Held {
    /// On the device, from the forward to the end of the backward.
    fn on_device(&self, mode: usize) -> u64 {
        if mode & AWAY == 0 {
            self.in_flight
        } else {
            self.offloading
        }
    }
}

/// Forms of a schedule's backwards: neither in inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ways {
    pub(super) joint: bool,
    pub(super) halves: bool,
}

/// Peak memory of any consecutive layers, in constant time.
///
/// Parameters, their gradients (all sets of a tree's) and the optimizer's state throughout; the activations
/// of the micro-batches in flight, or, with recompute, the inputs of those in flight (and, on the last stage,
/// the loss function's part) and the activations of those in their backward. One of these is being computed:
/// while a layer runs, there are its temporaries and, of this micro-batch, the activations of the layers up
/// to it. Those of later layers do not exist yet in a forward, and are gone in a backward; between the halves
/// of a backward there are the bytes kept for the second one. In inference: the parameters, and the largest
/// input, output and temporary of a layer.
///
/// With CUDA graphs, for a stage that neither recomputes nor offloads: for each micro-batch in flight a slot
/// with all of that, gradients of the parameters, and the input, throughout.
///
/// For a given start it never falls as the end moves right: the searches rely on that.
#[derive(Debug)]
pub(super) struct Memory {
    training: bool,
    graphs: bool,
    /// Number of sets of gradients.
    sets: u64,
    /// Prefix sums of parameters.
    parameters: Vec<u64>,
    /// Prefix sums of fixed bytes, and of the most that micro-batches keep.
    fixed: Vec<u64>,
    activations: Vec<u64>,
    /// Prefix sums of the least that a micro-batch keeps in all passes.
    least: Vec<u64>,
    /// Prefix sums of activations after the forward.
    plain: Vec<u64>,
    /// Prefix sums of the bytes kept after the input half of a backward; none if no stage has halves.
    after_input: Option<Vec<u64>>,
    /// Part of the last layer's activations that belongs to the loss function: a recompute keeps it.
    loss: u64,
    /// Input of layer i for one micro-batch.
    inputs: Vec<u64>,
    /// Bytes of the micro-batch being computed, by kind of action.
    working: Vec<Working>,
}

/// Bytes of one micro-batch while a kind of action goes through layers.
#[derive(Debug)]
struct Working {
    kind: ActionKind,
    /// Prefix sums of the bytes kept by the layers up to the running one, and by those after it.
    up_to: Vec<u64>,
    behind: Vec<u64>,
    /// Per layer while it runs, with the bytes of all layers before and after it.
    peaks: RangeMax,
}

impl Working {
    fn new(
        kind: ActionKind,
        up_to: &[u64],
        behind: Option<&[u64]>,
        temporary: impl Iterator<Item = u64>,
    ) -> Self {
        let nothing = vec![0; up_to.len()];
        let behind = behind.unwrap_or(&nothing).to_vec();
        let all = behind.last().copied().unwrap_or(0);
        let peak = |(layer, temporary): (usize, u64)| {
            let others = up_to[layer + 1].saturating_add(all - behind[layer + 1]);
            others.saturating_add(temporary)
        };
        Self {
            kind,
            peaks: RangeMax::new(temporary.enumerate().map(peak).collect()),
            up_to: up_to.to_vec(),
            behind,
        }
    }

    /// Returns the most bytes in the layers `start..end`.
    fn of(&self, start: usize, end: usize) -> u64 {
        let all = self.behind.last().copied().unwrap_or(0);
        let outside = self.up_to[start].saturating_add(all - self.behind[end]);
        self.peaks.of(start, end).saturating_sub(outside)
    }
}

impl Memory {
    /// `state`: bytes of optimizer state per byte of parameters; `sets`: number of sets of gradients.
    pub(super) fn new(
        costs: &[LayerCost],
        input: Bytes,
        ways: Ways,
        (state, sets, graphs): (f64, u64, bool),
    ) -> Self {
        let training = ways.joint || ways.halves;
        let copies = if training {
            1.0 + sets as f64 + state
        } else {
            1.0
        };
        let fixed = |cost: &LayerCost| (cost.parameters.0 as f64 * copies).ceil() as u64;
        let plain = |cost: &LayerCost| if training { cost.activations.0 } else { 0 };
        let after = |cost: &LayerCost| if ways.halves { cost.after_input.0 } else { 0 };
        let mut inputs = vec![input.0];
        inputs.extend(costs.iter().map(|cost| cost.output.0));
        let mut memory = Self {
            training,
            graphs: graphs && training,
            sets,
            parameters: prefix(costs.iter().map(|cost| cost.parameters.0)),
            fixed: prefix(costs.iter().map(fixed)),
            activations: prefix(costs.iter().map(|cost| plain(cost).max(after(cost)))),
            least: prefix(costs.iter().map(|cost| {
                let most = if ways.halves { after(cost) } else { u64::MAX };
                plain(cost).min(most)
            })),
            plain: prefix(costs.iter().map(plain)),
            after_input: ways.halves.then(|| prefix(costs.iter().map(after))),
            loss: costs.last().map_or(0, |cost| cost.loss.0.min(plain(cost))),
            inputs,
            working: Vec::new(),
        };
        memory.working = memory.work(costs, ways);
        memory
    }

    fn work(&self, costs: &[LayerCost], ways: Ways) -> Vec<Working> {
        let mut work = Vec::new();
        if !self.training {
            let around = costs.iter().zip(&self.inputs);
            let around = around.map(|(cost, into)| {
                let values = into.saturating_add(cost.output.0);
                cost.temporary.0.saturating_add(values)
            });
            work.push(Working::new(ActionKind::Forward, &self.plain, None, around));
        }
        if ways.joint {
            let temporary = costs.iter().map(|cost| cost.temporary.0);
            work.push(Working::new(
                ActionKind::Backward,
                &self.plain,
                None,
                temporary,
            ));
        }
        if let Some(after) = &self.after_input {
            let input = costs.iter().map(|cost| cost.input_temporary.0);
            work.push(Working::new(
                ActionKind::BackwardInput,
                &self.plain,
                Some(after),
                input,
            ));
            let weight = costs.iter().map(|cost| cost.weight_temporary.0);
            work.push(Working::new(
                ActionKind::BackwardWeight,
                after,
                None,
                weight,
            ));
        }
        work
    }

    /// Whether passes run as CUDA graphs.
    pub(super) fn has_graphs(&self) -> bool {
        self.graphs
    }

    /// Returns the bytes that the layers `start..end` need.
    pub(super) fn bytes(&self, mode: usize, held: Held, start: usize, end: usize) -> u64 {
        let activations = self.activations[end] - self.activations[start];
        let fixed = self.fixed[end] - self.fixed[start];
        if !self.training {
            return fixed.saturating_add(self.running(start, end));
        }
        if self.graphs && mode == PLAIN {
            let slots = self.slot(start, end).saturating_mul(held.in_flight.max(1));
            return fixed.saturating_add(slots);
        }
        let there = held.on_device(mode);
        let (count, waiting) = if mode & REDO == 0 {
            (there, 0)
        } else {
            let inputs = self.inputs[start].saturating_mul(there);
            let losses = self.loss_in(end);
            let losses = losses.saturating_mul(there.saturating_sub(held.backward.max(1)));
            (held.backward, inputs.saturating_add(losses))
        };
        // A schedule holds at least the micro-batch being computed.
        fixed
            .saturating_add(waiting)
            .saturating_add(activations.saturating_mul(count.max(1) - 1))
            .saturating_add(self.running(start, end))
    }

    /// Returns the loss function's part that a stage up to `end` keeps despite recompute.
    fn loss_in(&self, end: usize) -> u64 {
        if end + 1 == self.inputs.len() {
            self.loss
        } else {
            0
        }
    }

    /// Returns the most bytes of the micro-batch being computed.
    fn running(&self, start: usize, end: usize) -> u64 {
        let work = self.working.iter();
        work.map(|work| work.of(start, end)).max().unwrap_or(0)
    }

    /// Returns the bytes of the graphs of one micro-batch.
    fn slot(&self, start: usize, end: usize) -> u64 {
        let gradients = self.parameters[end] - self.parameters[start];
        let own = gradients.saturating_add(self.inputs[start]);
        self.running(start, end).saturating_add(own)
    }

    /// Returns a stage's memory for the simulator, if CUDA graphs hold everything that micro-batches need.
    pub(super) fn stage_in_graphs(&self, held: Held, range: Range<usize>) -> StageMemory {
        let slots = self.slot(range.start, range.end);
        StageMemory {
            graphs: Bytes(slots.saturating_mul(held.in_flight.max(1))),
            activation: Bytes::ZERO,
            kept_for_weight: None,
            working: Bytes::ZERO,
            ..self.stage(PLAIN, range)
        }
    }

    /// Returns a stage's memory for the simulator.
    pub(super) fn stage(&self, mode: usize, range: Range<usize>) -> StageMemory {
        let (start, end) = (range.start, range.end);
        let parameters = self.parameters[end] - self.parameters[start];
        let fixed = self.fixed[end] - self.fixed[start];
        let kept = self.plain[end] - self.plain[start];
        let mut memory = StageMemory {
            parameters: Bytes(parameters),
            ..StageMemory::default()
        };
        if !self.training {
            memory.activation = Bytes(self.running(start, end));
            return memory;
        }
        memory.gradients = Bytes(self.sets.saturating_mul(parameters));
        memory.optimizer = Bytes(fixed) - memory.parameters - memory.gradients;
        if mode & REDO == 0 {
            memory.activation = Bytes(kept);
        } else {
            let loss = self.loss_in(end);
            memory.activation = Bytes(self.inputs[start] + loss);
            memory.recomputed = Bytes(kept - loss);
        }
        if mode & AWAY != 0 {
            memory.offloaded = memory.activation;
        }
        let after = self.after_input.as_ref();
        memory.kept_for_weight = after.map(|after| Bytes(after[end] - after[start]));
        // The bytes held when each kind of action begins are already in the levels.
        let after = memory.kept_for_weight.unwrap_or_default().0;
        let more = self.working.iter().map(|work| {
            let held = match work.kind {
                ActionKind::BackwardInput => kept.max(after),
                ActionKind::BackwardWeight => after,
                _ => kept,
            };
            work.of(start, end).saturating_sub(held)
        });
        memory.working = Bytes(more.max().unwrap_or(0));
        memory.sent = Bytes(self.inputs[start]);
        memory
    }

    /// Returns the bytes that a micro-batch of a stage without recompute does not keep if it has a separate
    /// recompute.
    pub(super) fn recomputable(&self, range: Range<usize>) -> Bytes {
        let kept = self.plain[range.end] - self.plain[range.start];
        let left = self.inputs[range.start] + self.loss_in(range.end);
        Bytes(kept.saturating_sub(left))
    }

    /// Returns a number that orders starts: if it is no larger for a later start, the later start needs no
    /// more memory, for any end.
    pub(super) fn key(&self, mode: usize, held: Held, start: usize) -> i128 {
        let at = |sums: &[u64]| i128::from(sums[start]);
        let (fixed, kept, least) = (at(&self.fixed), at(&self.activations), at(&self.least));
        let there = held.on_device(mode);
        match mode {
            PLAIN if self.graphs => {
                let count = i128::from(held.in_flight.max(1));
                (at(&self.inputs) - at(&self.parameters) - least) * count - fixed
            }
            _ if mode & REDO == 0 => -fixed - kept * i128::from(there),
            // Only `least` of the micro-batch being computed is certain to go.
            _ => {
                at(&self.inputs) * i128::from(there)
                    - fixed
                    - kept * i128::from(held.backward.max(1) - 1)
                    - least
            }
        }
    }
}

fn prefix(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sum = 0_u64;
    let running = values.map(|value| {
        sum = sum.saturating_add(value);
        sum
    });
    std::iter::once(0).chain(running).collect()
}

/// Maximum over any range of values: a sparse table (Bender and Farach-Colton, 2000).
#[derive(Debug)]
struct RangeMax {
    /// `levels[l][i]` is the largest of `values[i..i + 2^l]`; empty if all are 0.
    levels: Vec<Vec<u64>>,
}

impl RangeMax {
    fn new(values: Vec<u64>) -> Self {
        if values.iter().all(|&value| value == 0) {
            return Self { levels: Vec::new() };
        }
        let mut levels = vec![values];
        let mut half = 1;
        while 2 * half <= levels[0].len() {
            let below = &levels[levels.len() - 1];
            let pairs = below.iter().zip(&below[half..]);
            levels.push(pairs.map(|(a, b)| *a.max(b)).collect());
            half *= 2;
        }
        Self { levels }
    }

    /// Returns the largest of `values[start..end]`, a nonempty range.
    fn of(&self, start: usize, end: usize) -> u64 {
        if self.levels.is_empty() {
            return 0;
        }
        let level = (end - start).ilog2();
        let row = &self.levels[level as usize];
        row[start].max(row[end - (1 << level)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_max_is_the_maximum() {
        let values: Vec<u64> = vec![3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5];
        let table = RangeMax::new(values.clone());
        for start in 0..values.len() {
            for end in start + 1..=values.len() {
                let expected = *values[start..end].iter().max().unwrap();
                assert_eq!(table.of(start, end), expected, "{start}..{end}");
            }
        }
    }
}
