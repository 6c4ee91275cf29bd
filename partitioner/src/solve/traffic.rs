//! Search for a cut with the least traffic within a limit.
//!
//! The bottleneck alone leaves most cuts free to move: a stage that is not the slowest may have
//! more or fewer layers. Once the smallest bottleneck is known, a second dynamic program over the
//! same reachable cuts finds the least traffic of each. Time comes first, to the tick; bytes only
//! break ties.
//!
//! The least traffic up to cut k of stage j is that of the best start of a stage which ends there,
//! plus the bytes at k. Of two starts the later one costs no more; if it also needs no more memory,
//! and has no more traffic, the earlier one is never better: the rest is a list in which, without
//! recompute, traffic grows with the start, and the first one that is cheap enough and fits
//! decides.

use super::chain::{Chain, Cut, Part};
use super::memory::REDO;
use super::probe::Reach;

/// Traffic of a cut that cannot be reached.
const NEVER: u64 = u64::MAX;
/// Most comparisons of starts where no order gives the best one; beyond it the evenly filled cut
/// stays.
const LOOKS: usize = 1 << 26;

/// Returns the cut with the least traffic among those of `reach`, the evenest among equals. None if
/// the search would be too long.
///
/// # Complexity
/// O(stages · w · log w) with w positions of a cut; if stages may recompute and memory is limited,
/// at most [`LOOKS`] in addition.
pub(super) fn leanest(chain: &Chain, reach: &Reach<'_>) -> Option<Cut> {
    let mut looks = LOOKS;
    let mut least = vec![vec![0]];
    for stage in 0..chain.stages {
        let row = Row::new(chain, reach, stage, &least[stage]).ends(&mut looks)?;
        least.push(row);
    }
    let mut parts = Vec::with_capacity(chain.stages);
    let mut end = chain.layers;
    for stage in (0..chain.stages).rev() {
        let at = |boundary: usize, cut: usize| least[boundary][cut - reach.first(boundary)];
        let before = at(stage + 1, end).checked_sub(chain.sent(stage, end))?;
        let part = reach
            .parts(stage, end)
            .filter(|part| at(stage, part.start) == before)
            .min_by_key(|&part| reach.unevenness(stage, end, part))?;
        parts.push(part);
        end = part.start;
    }
    parts.reverse();
    Some(Cut { parts })
}

/// Returns the bytes of one micro-batch sent between devices on the way forward.
pub(super) fn traffic(chain: &Chain, cut: &Cut) -> u64 {
    let sent = (0..chain.stages).map(|stage| chain.sent(stage, cut.end(stage, chain)));
    sent.fold(0, u64::saturating_add)
}

/// The ends of a stage, and the traffic up to its starts.
struct Row<'a> {
    chain: &'a Chain,
    reach: &'a Reach<'a>,
    stage: usize,
    before: &'a [u64],
}

impl<'a> Row<'a> {
    fn new(chain: &'a Chain, reach: &'a Reach<'a>, stage: usize, before: &'a [u64]) -> Self {
        Self {
            chain,
            reach,
            stage,
            before,
        }
    }

    /// Returns the least traffic up to each end.
    fn ends(&self, looks: &mut usize) -> Option<Vec<u64>> {
        let (reach, stage) = (self.reach, self.stage);
        let mut starts: Vec<Starts> = reach.modes(stage).iter().map(|&m| Starts::new(m)).collect();
        let (first, first_end) = (reach.first(stage), reach.first(stage + 1));
        let mut pushed = 0;
        let mut row = Vec::with_capacity(reach.reached(stage + 1).len());
        for (index, &reached) in reach.reached(stage + 1).iter().enumerate() {
            let end = first_end + index;
            while pushed < self.before.len() && first + pushed < end {
                if self.before[pushed] != NEVER {
                    for starts in &mut starts {
                        starts.push(self, first + pushed, self.before[pushed]);
                    }
                }
                pushed += 1;
            }
            let mut least = NEVER;
            if reached {
                for starts in &mut starts {
                    least = least.min(starts.least(self, end, looks)?);
                }
            }
            row.push(least.saturating_add(self.chain.sent(stage, end)));
        }
        Some(row)
    }

    fn is_cheap(&self, mode: usize, start: usize, end: usize) -> bool {
        self.chain.cost(self.stage, Part { start, mode }, end) <= self.reach.limit()
    }
}

/// Starts of a stage in one mode, without those that are never better.
struct Starts {
    mode: usize,
    entries: Vec<Start>,
    /// Earlier entries no longer fit.
    from: usize,
}

#[derive(Clone, Copy)]
struct Start {
    layer: usize,
    traffic: u64,
    key: i128,
}

impl Starts {
    fn new(mode: usize) -> Self {
        Self {
            mode,
            entries: Vec::new(),
            from: 0,
        }
    }

    /// Adds a start, later than all before.
    fn push(&mut self, row: &Row<'_>, start: usize, traffic: u64) {
        let (chain, stage) = (row.chain, row.stage);
        let key = if self.is_ordered(row) {
            0
        } else {
            chain.memory.key(self.mode, chain.held[stage], start)
        };
        let beaten = |old: &Start| old.traffic >= traffic && old.key >= key;
        while self.entries.len() > self.from && self.entries.last().is_some_and(beaten) {
            self.entries.pop();
        }
        let layer = start;
        self.entries.push(Start {
            layer,
            traffic,
            key,
        });
    }

    /// Whether a later start never needs more memory, so that traffic grows along the list.
    fn is_ordered(&self, row: &Row<'_>) -> bool {
        let graphs = row.chain.memory.has_graphs();
        !row.reach.is_capped(row.stage) || (self.mode & REDO == 0 && !graphs)
    }

    /// Returns the least traffic of a start whose stage up to `end` is cheap enough and fits.
    fn least(&mut self, row: &Row<'_>, end: usize, looks: &mut usize) -> Option<u64> {
        let mode = self.mode;
        let fits = |start| row.reach.fits(row.stage, Part { start, mode }, end);
        let dear = |own: &Start| !row.is_cheap(mode, own.layer, end);
        let cheap = self.from + self.entries[self.from..].partition_point(dear);
        if self.is_ordered(row) {
            // An entry that no longer fits never fits again.
            while self.from < self.entries.len() && !fits(self.entries[self.from].layer) {
                self.from += 1;
            }
            let first = self.entries.get(cheap.max(self.from));
            return Some(first.map_or(NEVER, |own| own.traffic));
        }
        *looks = looks.checked_sub(self.entries.len() - cheap)?;
        let mut least = NEVER;
        for own in &mut self.entries[cheap..] {
            if own.traffic < least {
                if fits(own.layer) {
                    least = own.traffic;
                } else {
                    own.traffic = NEVER;
                }
            }
        }
        Some(least)
    }
}
