//! The evenest cut whose parts are all at most `cap`.
//!
//! The cost of a part, (its weight squared, its layer count squared), satisfies the
//! quadrangle inequality, because a square is convex and both prefix sums increase. The
//! best last cut therefore moves right as the end moves right, and each stage's row of the
//! dynamic program fills by divide and conquer over that monotone choice.

use std::cmp::Reverse;

/// Sum of squared weights, then sum of squared layer counts.
type Cost = (u128, u128);

/// Returns `stages + 1` cut positions; parts of at most `cap` must exist.
///
/// # Complexity
/// O(stages · layers · log layers) time, O(stages · layers) memory.
pub(super) fn cuts(prefix: &[u128], stages: usize, cap: u128) -> Vec<usize> {
    let (lowest, highest) = windows(prefix, stages, cap);
    let mut rows: Vec<Vec<usize>> = Vec::with_capacity(stages);
    let mut costs: Vec<Cost> = vec![(0, 0)];
    for stage in 0..stages {
        let mut row = Row {
            prefix,
            cap,
            shift: shift(prefix),
            first: lowest[stage],
            last: highest[stage],
            before: &costs,
            to: lowest[stage + 1],
            costs: vec![(u128::MAX, u128::MAX); highest[stage + 1] - lowest[stage + 1] + 1],
            choice: vec![0; highest[stage + 1] - lowest[stage + 1] + 1],
        };
        row.fill(
            lowest[stage + 1],
            highest[stage + 1],
            lowest[stage],
            highest[stage],
        );
        let (next, choice) = (row.costs, row.choice);
        costs = next;
        rows.push(choice);
    }
    let mut cuts = vec![prefix.len() - 1];
    for stage in (0..stages).rev() {
        let end = cuts[cuts.len() - 1];
        cuts.push(rows[stage][end - lowest[stage + 1]]);
    }
    cuts.reverse();
    cuts
}

/// Returns, per boundary, the first and the last position from which both sides are possible.
fn windows(prefix: &[u128], stages: usize, cap: u128) -> (Vec<usize>, Vec<usize>) {
    let layers = prefix.len() - 1;
    let mut lowest = vec![layers; stages + 1];
    for stage in (0..stages).rev() {
        let end = lowest[stage + 1];
        let first = prefix.partition_point(|&sum| sum + cap < prefix[end]);
        lowest[stage] = first.clamp(stage, end - 1);
    }
    let mut highest = vec![0; stages + 1];
    for stage in 1..=stages {
        let start = highest[stage - 1];
        let last = prefix.partition_point(|&sum| sum <= prefix[start] + cap) - 1;
        highest[stage] = last.min(layers - (stages - stage));
    }
    (lowest, highest)
}

/// Right shift of weights such that the squares of their sums fit a u128.
fn shift(prefix: &[u128]) -> u32 {
    let bits = u128::BITS - prefix[prefix.len() - 1].leading_zeros();
    bits.saturating_sub(60)
}

/// One stage's row of the dynamic program.
struct Row<'a> {
    prefix: &'a [u128],
    cap: u128,
    shift: u32,
    /// Window of the stage's start, and the costs of the stages before it.
    first: usize,
    last: usize,
    before: &'a [Cost],
    /// First position of the stage's end.
    to: usize,
    costs: Vec<Cost>,
    choice: Vec<usize>,
}

impl Row<'_> {
    /// Fills the ends `from..=to`, whose best starts lie in `low..=high`.
    fn fill(&mut self, from: usize, to: usize, low: usize, high: usize) {
        let middle = from + (to - from) / 2;
        let (cost, start) = self.best(middle, low, high);
        self.costs[middle - self.to] = cost;
        self.choice[middle - self.to] = start;
        if middle > from {
            self.fill(from, middle - 1, low, start);
        }
        if middle < to {
            self.fill(middle + 1, to, start, high);
        }
    }

    /// The best start of a part that ends at `end`.
    fn best(&self, end: usize, low: usize, high: usize) -> (Cost, usize) {
        let fits = self
            .prefix
            .partition_point(|&sum| sum + self.cap < self.prefix[end]);
        let low = low.max(self.first).max(fits);
        let high = high.min(self.last).min(end - 1);
        (low..=high)
            .map(|start| (self.cost(start, end), start))
            // Among equal costs the latest start: the first stages get an excess layer.
            .min_by_key(|&(cost, start)| (cost, Reverse(start)))
            .unwrap_or(((u128::MAX, u128::MAX), low.min(end - 1)))
    }

    fn cost(&self, start: usize, end: usize) -> Cost {
        let before = self.before[start - self.first];
        let weight = (self.prefix[end] >> self.shift) - (self.prefix[start] >> self.shift);
        let count = (end - start) as u128;
        (
            before.0.saturating_add(weight * weight),
            before.1.saturating_add(count * count),
        )
    }
}
