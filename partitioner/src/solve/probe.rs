//! Is there a cut whose stages all cost at most `limit` ticks?
//!
//! Without transfers and memory limits, giving each stage as much as it can take is optimal. A transfer makes
//! some cuts more expensive than their neighbours, so the farthest cut need not be the best one, and the
//! probe is a dynamic program over the cuts that can be *reached*: cut k can be the end of stage j if some
//! reachable end i < k of stage j − 1 leaves a stage that is cheap enough and fits. Two observations make it
//! fast.
//!
//! * The greedy bound without transfers and memory, from the left and from the right, leaves a
//!   window of positions per stage; near the optimum it is narrow.
//! * The cost of a stage is a(i) + b(k), or the largest of several such sums, each of which falls as the
//!   start i moves right: of all starts that fit, the last one decides. The memory of a start only grows with
//!   k, so a start that no longer fits never fits again: a list sorted by a(i), whose best entry is dropped
//!   once it does not fit, answers in amortized constant time.
//!
//! If the answer is no, the probe also returns the least limit at which anything would change: the next
//! candidate for the optimum.

use super::chain::{Chain, Cut, Part};
use super::memory::AWAY;

/// Cuts that can be reached.
#[derive(Debug)]
pub(super) struct Reach<'a> {
    chain: &'a Chain,
    limit: i64,
    caps: &'a [Option<u64>],
    /// Per stage boundary, the first and last position that a cut can have.
    lowest: Vec<usize>,
    highest: Vec<usize>,
    /// Whether the windows contain every cut that the limits permit.
    pub(super) complete: bool,
    /// Per stage boundary, whether each position from `lowest` can be reached.
    reached: Vec<Vec<bool>>,
}

/// The limit is too low. Any limit below `next` is also too low; none helps if it is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct TooLow {
    pub(super) next: Option<i64>,
}

/// Answer for a limit.
pub(super) enum Answer {
    /// This cut stays within the limit.
    Yes(Cut),
    /// No cut does.
    No(TooLow),
    /// None was found within the permitted effort.
    Unknown,
}

/// The smallest of the limits at which an answer would change.
#[derive(Debug)]
struct Next(i64);

impl Next {
    fn offer(&mut self, cost: i64, limit: i64) {
        if cost > limit {
            self.0 = self.0.min(cost);
        }
    }

    fn too_low(&self) -> TooLow {
        TooLow {
            next: (self.0 != i64::MAX).then_some(self.0),
        }
    }
}

/// Whether stages of at most `limit` ticks and `caps[stage]` bytes can cover the chain.
///
/// # Complexity
/// O(stages · (log layers + positions in a window)), and as much memory.
pub(super) fn probe<'a>(
    chain: &'a Chain,
    limit: i64,
    caps: &'a [Option<u64>],
) -> Result<Reach<'a>, TooLow> {
    let windows = windows(chain, limit)?;
    if windows.cells() > WIDE
        && let Ok(mut reach) = within(chain, limit, caps, windows.near_even(chain))
    {
        reach.complete = false;
        return Ok(reach);
    }
    within(chain, limit, caps, windows)
}

/// Probes within given windows.
fn within<'a>(
    chain: &'a Chain,
    limit: i64,
    caps: &'a [Option<u64>],
    windows: Windows,
) -> Result<Reach<'a>, TooLow> {
    let Windows {
        lowest,
        highest,
        mut next,
    } = windows;
    let mut reach = Reach {
        chain,
        limit,
        caps,
        lowest,
        highest,
        complete: true,
        reached: vec![vec![true]],
    };
    for stage in 0..chain.stages {
        let row = reach.ends(stage, &mut next);
        if !row.contains(&true) {
            return Err(next.too_low());
        }
        reach.reached.push(row);
    }
    Ok(reach)
}

/// Positions that greedy stages leave for each cut, without transfers and memory limits.
#[derive(Debug)]
pub(super) struct Windows {
    lowest: Vec<usize>,
    highest: Vec<usize>,
    next: Next,
}

/// With more positions than this, those near an even filling are tried first.
const WIDE: usize = 1 << 20;
/// Distance of those from an even filling, in layers.
const NEAR: usize = 128;

impl Windows {
    /// Number of positions.
    fn cells(&self) -> usize {
        let windows = self.lowest.iter().zip(&self.highest);
        windows.map(|(low, high)| high - low + 1).sum()
    }

    /// Returns the part of the windows near an even filling. A cut found within it is valid; if there is
    /// none, nothing follows.
    fn near_even(&self, chain: &Chain) -> Self {
        let total = chain.even[chain.layers] as f64;
        let center = |boundary: usize| {
            let target = (total * chain.shares[boundary]) as i64;
            chain.even.partition_point(|&sum| sum < target)
        };
        let windows = || self.lowest.iter().zip(&self.highest).enumerate();
        let clamp = |(boundary, (&low, &high)): (usize, (&usize, &usize))| {
            let center = center(boundary);
            let first = center.saturating_sub(NEAR).clamp(low, high);
            (first, (center + NEAR).clamp(first, high))
        };
        let (lowest, highest) = windows().map(clamp).unzip();
        Self {
            lowest,
            highest,
            next: Next(i64::MAX),
        }
    }
}

/// Returns the windows; fails if some cut has no position left.
///
/// # Complexity
/// O(stages · log layers).
pub(super) fn windows(chain: &Chain, limit: i64) -> Result<Windows, TooLow> {
    let mut next = Next(i64::MAX);
    let (layers, stages) = (chain.layers, chain.stages);
    let mut highest = vec![0; stages + 1];
    for stage in 0..stages {
        let row = chain.row(stage, chain.modes[0]);
        let start = highest[stage];
        let end = start + row[start..].partition_point(|&sum| sum - row[start] <= limit) - 1;
        if end < layers {
            next.offer(row[end + 1] - row[start], limit);
        }
        highest[stage + 1] = end.min(layers - (stages - stage - 1));
    }
    let mut lowest = vec![layers; stages + 1];
    for stage in (0..stages).rev() {
        let row = chain.row(stage, chain.modes[0]);
        let end = lowest[stage + 1];
        let start = row[..=end].partition_point(|&sum| row[end] - sum > limit);
        if start > 0 {
            next.offer(row[end] - row[start - 1], limit);
        }
        lowest[stage] = start.max(stage);
    }
    if lowest.iter().zip(&highest).any(|(low, high)| low > high) {
        return Err(next.too_low());
    }
    Ok(Windows {
        lowest,
        highest,
        next,
    })
}

impl Reach<'_> {
    /// Returns which ends of `stage` can be reached.
    fn ends(&self, stage: usize, next: &mut Next) -> Vec<bool> {
        let chain = self.chain;
        let first = self.lowest[stage];
        let starts = &self.reached[stage];
        let mut fronts: Vec<Front> = self
            .modes(stage)
            .iter()
            .map(|&mode| Front::new(mode))
            .collect();
        let mut pushed = 0;
        let mut row = vec![false; self.highest[stage + 1] - self.lowest[stage + 1] + 1];
        for (index, reached) in row.iter_mut().enumerate() {
            let end = self.lowest[stage + 1] + index;
            while pushed < starts.len() && first + pushed < end {
                if starts[pushed] {
                    for front in &mut fronts {
                        front.push(self, stage, first + pushed);
                    }
                }
                pushed += 1;
            }
            for front in &mut fronts {
                if let Some(part) = front.best(self, stage, end) {
                    let cost = chain.cost(stage, part, end);
                    *reached |= cost <= self.limit;
                    next.offer(cost, self.limit);
                }
            }
        }
        row
    }

    /// The limit of a stage's ticks.
    pub(super) fn limit(&self) -> i64 {
        self.limit
    }

    /// First position of a cut.
    pub(super) fn first(&self, boundary: usize) -> usize {
        self.lowest[boundary]
    }

    /// Whether a cut can be at each position from the first one on.
    pub(super) fn reached(&self, boundary: usize) -> &[bool] {
        &self.reached[boundary]
    }

    /// Whether a stage has a memory limit.
    pub(super) fn is_capped(&self, stage: usize) -> bool {
        self.caps[stage].is_some()
    }

    /// Returns the modes worth trying. Without a limit the first one is never worse: it does the least,
    /// unless all stages offload, where those that recompute have less to move.
    pub(super) fn modes(&self, stage: usize) -> &[usize] {
        let modes = &self.chain.modes;
        match self.caps[stage] {
            None if modes[0] & AWAY == 0 => &modes[..1],
            _ => modes,
        }
    }

    /// Whether a stage fits its memory limit.
    pub(super) fn fits(&self, stage: usize, part: Part, end: usize) -> bool {
        self.caps[stage].is_none_or(|cap| self.chain.bytes(stage, part, end) <= cap)
    }

    /// Returns all starts and modes of `stage` that can end at `end`, cheap enough and fitting.
    pub(super) fn parts(&self, stage: usize, end: usize) -> impl Iterator<Item = Part> {
        let from = self.lowest[stage];
        let to = self.highest[stage].min(end - 1);
        let row = self.chain.row(stage, self.chain.modes[0]);
        // Work only grows as the start moves left: stop at the limit.
        let first = row[..=to].partition_point(|&sum| row[end] - sum > self.limit);
        let starts = (from.max(first)..=to).rev();
        starts
            .filter(move |&start| self.reached[stage][start - from])
            .flat_map(|start| {
                self.chain
                    .modes
                    .iter()
                    .map(move |&mode| Part { start, mode })
            })
            .filter(move |&part| {
                self.chain.cost(stage, part, end) <= self.limit && self.fits(stage, part, end)
            })
    }

    /// Returns the distance of a start from an even share of the work, the cheaper mode first.
    pub(super) fn unevenness(&self, stage: usize, end: usize, part: Part) -> (i64, usize) {
        let even = &self.chain.even;
        let share = self.chain.shares[stage] / self.chain.shares[stage + 1];
        let target = (even[end] as f64 * share) as i64;
        ((even[part.start] - target).abs(), part.mode)
    }

    /// Returns a cut of evenly filled stages within the limits.
    pub(super) fn cut(&self) -> Option<Cut> {
        let mut parts = Vec::with_capacity(self.chain.stages);
        let mut end = self.chain.layers;
        for stage in (0..self.chain.stages).rev() {
            let candidates = self.parts(stage, end);
            let part = candidates.min_by_key(|&part| self.unevenness(stage, end, part))?;
            parts.push(part);
            end = part.start;
        }
        parts.reverse();
        Some(Cut { parts })
    }
}

/// Starts of a stage, with the cheapest that still fits on top.
struct Front {
    mode: usize,
    /// By start, and so by falling cost.
    entries: Vec<FrontEntry>,
}

#[derive(Clone, Copy)]
struct FrontEntry {
    key: i128,
    start: usize,
}

impl Front {
    fn new(mode: usize) -> Self {
        Self {
            mode,
            entries: Vec::new(),
        }
    }

    /// Adds a start, later than all before. Removes those that are worse in cost and memory.
    fn push(&mut self, reach: &Reach<'_>, stage: usize, start: usize) {
        let chain = reach.chain;
        let capped = reach.caps[stage].is_some();
        let key = |start| chain.memory.key(self.mode, chain.held[stage], start);
        let new = FrontEntry {
            key: if capped { key(start) } else { 0 },
            start,
        };
        let beaten = |old: &FrontEntry| old.key >= new.key;
        while self.entries.last().is_some_and(beaten) {
            self.entries.pop();
        }
        self.entries.push(new);
    }

    /// Returns the cheapest start that fits a stage up to `end`; drops those that do not fit.
    fn best(&mut self, reach: &Reach<'_>, stage: usize, end: usize) -> Option<Part> {
        while let Some(entry) = self.entries.last() {
            let part = Part {
                start: entry.start,
                mode: self.mode,
            };
            if reach.fits(stage, part, end) {
                return Some(part);
            }
            self.entries.pop();
        }
        None
    }
}
