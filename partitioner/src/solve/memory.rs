//! What a stage needs at its peak.

use std::ops::Range;

use crate::cost::StageMemory;
use crate::profile::LayerCost;
use crate::units::Bytes;

/// Whether a stage recomputes: the index of everything that depends on it.
pub(super) const PLAIN: usize = 0;
pub(super) const REDO: usize = 1;

/// How many micro-batches a stage holds at its peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// From the forward to the end of the backward.
    pub(super) in_flight: u64,
    /// From the start of the backward to its end: 1, or more where the weight's half waits.
    pub(super) backward: u64,
}

/// Peak memory of any run of layers, in constant time.
///
/// Parameters, their gradients and the optimizer's state always; the activations of the
/// micro-batches in flight, or, with recompute, the inputs of those in flight and the
/// activations of those in their backward. Of these one is being worked on: while a layer
/// runs, there are its temporaries and, of this micro-batch, the activations of the layers
/// up to it (those behind are not there yet in a forward, and gone in a backward). In
/// inference: the parameters, and the largest input, output and temporary of a layer.
///
/// For a given start it never falls as the end moves right: the searches rely on that.
#[derive(Debug)]
pub(super) struct Memory {
    training: bool,
    /// Prefix sums of what is there throughout, and of what micro-batches keep at most.
    fixed: Vec<u64>,
    activations: Vec<u64>,
    /// Of activations as the forward leaves them.
    plain: Vec<u64>,
    /// What micro-batches keep after the input half of a backward; none where no stage has
    /// halves.
    after_input: Option<Vec<u64>>,
    /// What enters layer i for one micro-batch.
    inputs: Vec<u64>,
    /// Of each layer, what there is while it runs: in training of the chain up to it.
    working: RangeMax,
}

impl Memory {
    /// `state`: bytes of optimizer state per byte of parameters; `halves`: whether any stage
    /// runs its backward in halves.
    pub(super) fn new(
        costs: &[LayerCost],
        input: Bytes,
        training: bool,
        halves: bool,
        state: f64,
    ) -> Self {
        let copies = if training { 2.0 + state } else { 1.0 };
        let fixed = |cost: &LayerCost| (cost.parameters.0 as f64 * copies).ceil() as u64;
        let plain = |cost: &LayerCost| if training { cost.activations.0 } else { 0 };
        let halves = training && halves;
        let kept = |cost: &LayerCost| {
            let after = if halves { cost.after_input.0 } else { 0 };
            plain(cost).max(after)
        };
        let mut inputs = vec![input.0];
        inputs.extend(costs.iter().map(|cost| cost.output.0));
        let activations = prefix(costs.iter().map(kept));
        let after_input = halves.then(|| prefix(costs.iter().map(|cost| cost.after_input.0)));
        let working = |(layer, cost): (usize, &LayerCost)| {
            if !training {
                return cost
                    .temporary
                    .0
                    .saturating_add(inputs[layer] + cost.output.0);
            }
            let gone = after_input.as_ref().map_or(0, |after| after[layer + 1]);
            (activations[layer + 1] - gone).saturating_add(cost.temporary.0)
        };
        let working = RangeMax::new(costs.iter().enumerate().map(working).collect());
        Self {
            training,
            fixed: prefix(costs.iter().map(fixed)),
            plain: prefix(costs.iter().map(plain)),
            activations,
            after_input,
            working,
            inputs,
        }
    }

    /// Bytes that the layers `start..end` need.
    pub(super) fn bytes(&self, mode: usize, held: Held, start: usize, end: usize) -> u64 {
        let activations = self.activations[end] - self.activations[start];
        let fixed = self.fixed[end] - self.fixed[start];
        if !self.training {
            return fixed.saturating_add(self.working.of(start, end));
        }
        let (count, inputs) = match mode {
            PLAIN => (held.in_flight, 0),
            _ => (
                held.backward,
                self.inputs[start].saturating_mul(held.in_flight),
            ),
        };
        // A schedule holds at least the micro-batch that it works on.
        fixed
            .saturating_add(inputs)
            .saturating_add(activations.saturating_mul(count.max(1) - 1))
            .saturating_add(self.running(start, end))
    }

    /// The most that there is of the micro-batch that is worked on.
    fn running(&self, start: usize, end: usize) -> u64 {
        let behind = self.after_input.as_ref().map_or(0, |after| after[end]);
        let most = behind.saturating_add(self.working.of(start, end));
        most.saturating_sub(self.activations[start])
    }

    /// What a stage holds and works with, in the simulator's terms.
    pub(super) fn stage(&self, mode: usize, parameters: u64, range: Range<usize>) -> StageMemory {
        let (start, end) = (range.start, range.end);
        let fixed = self.fixed[end] - self.fixed[start];
        let kept = self.plain[end] - self.plain[start];
        let mut memory = StageMemory {
            parameters: Bytes(parameters),
            ..StageMemory::default()
        };
        if !self.training {
            memory.activation = Bytes(self.working.of(start, end));
            return memory;
        }
        memory.gradients = Bytes(parameters);
        memory.optimizer = Bytes(fixed) - Bytes(2 * parameters);
        if mode == PLAIN {
            memory.activation = Bytes(kept);
        } else {
            memory.activation = Bytes(self.inputs[start]);
            memory.recomputed = Bytes(kept);
        }
        let after = self.after_input.as_ref();
        memory.kept_for_weight = after.map(|after| Bytes(after[end] - after[start]));
        let all = self.activations[end] - self.activations[start];
        memory.working = Bytes(self.running(start, end)) - Bytes(all);
        memory.sent = Bytes(self.inputs[start]);
        memory
    }

    /// A number that orders starts: if it is no larger for a later start, the later start
    /// needs no more memory, whatever the end.
    pub(super) fn key(&self, mode: usize, held: Held, start: usize) -> i128 {
        let (fixed, kept) = (
            i128::from(self.fixed[start]),
            i128::from(self.activations[start]),
        );
        match mode {
            PLAIN => -fixed - kept * i128::from(held.in_flight),
            _ => {
                i128::from(self.inputs[start]) * i128::from(held.in_flight)
                    - fixed
                    - kept * i128::from(held.backward)
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

/// The largest of any run of values: a sparse table (Bender and Farach-Colton, 2000).
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

    /// The largest of `values[start..end]`, a run that is not empty.
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
