//! Periodic candidates (modules `pattern` and `follow`).

use super::candidates::{CandidateSearch, LARGEST};
use super::follow::{self, More, Rule};
use super::local::Replay;
use super::pattern::Block;
use super::pipeline::Pipeline;
use super::refine::Start;
use super::thin::{self, Means};
use crate::schedule::{Placement, Schedule};

/// Divides the number of changes to get the number of orders tried: each is built from scratch.
const MADE: usize = 4;
/// Orders are also made for up to this many extra micro-batches of a chunk in memory, with recomputes or
/// offloads to make them fit.
const MOST_MORE: usize = 4;
/// Most of the last micro-batches that may have more memory than the others.
const LAST: usize = 8;

impl CandidateSearch<'_> {
    /// Tries periodic orders, if schedules would be shorter with more memory: at most about half as many as
    /// `moves`.
    pub(super) fn repeat(&mut self, placement: Placement, moves: usize) {
        let cells = self.shape.stages() * self.shape.micro_batches;
        if moves < MADE || cells >= LARGEST || !self.lacks_memory() {
            return;
        }
        let pipeline = Pipeline::new(self.shape, placement, self.costs, self.caps);
        let blocks = Block::all(&pipeline);
        // An even selection of all orders, for `turns` selections in all.
        let some = |turns: usize| {
            let most = (moves / MADE / turns).max(1);
            let all = blocks.len() * Rule::all().count();
            let some = blocks.iter().step_by(all.div_ceil(most).max(1));
            (some.flat_map(|block| Rule::all().map(move |rule| (block, rule)))).take(most)
        };
        let (mut best, mut by) = (f64::INFINITY, None);
        for own in some(1) {
            if let Some(lists) = follow::lists(&pipeline, More::NONE, own, best) {
                best = Replay::new(&pipeline, &lists)
                    .makespan(&lists)
                    .unwrap_or(best);
                by = Some(own);
                self.offer_lists(format!("auto ({placement:?}, repeated)"), lists);
            }
        }
        let means = Means::all(&pipeline);
        if means.is_empty() {
            return;
        }
        for chunks in 1..=MOST_MORE {
            for own in some(MOST_MORE) {
                self.repeat_with(placement, &pipeline, (own, More { chunks, from: 0 }));
            }
        }
        // The best order, with more memory for the last micro-batches only: it gives the device work while
        // those are on their way back.
        let (p, m) = (self.shape.devices.min(LAST), self.shape.micro_batches);
        let lasts = (1..=p)
            .flat_map(|chunks| (m.saturating_sub(p)..m).map(move |from| More { chunks, from }));
        if let Some(own) = by {
            for more in lasts.take(moves / MADE) {
                self.repeat_with(placement, &pipeline, (own, more));
            }
        }
    }

    /// Tries an order for more memory than the cap, thinned to fit.
    fn repeat_with(
        &mut self,
        placement: Placement,
        pipeline: &Pipeline,
        (own, more): ((&Block, Rule), More),
    ) {
        let Some(lists) = follow::lists(pipeline, more, own, self.upper()) else {
            return;
        };
        let (stages, m) = (self.shape.stages(), self.shape.micro_batches);
        let order = Schedule::new("auto", stages, m, lists);
        for &means in Means::all(pipeline) {
            self.thin(placement, pipeline, (&order, means));
        }
    }

    fn thin(
        &mut self,
        placement: Placement,
        pipeline: &Pipeline,
        (order, means): (&Schedule, Means),
    ) {
        let Some(thinned) = thin::thinned(pipeline, self.costs, order, means) else {
            return;
        };
        let upper = self.upper();
        // Without offload, the makespan is known at much less cost than for a candidate.
        if thinned.offloads().is_empty() {
            let lists = thinned.lists();
            let makespan = Replay::new(pipeline, lists).makespan(lists);
            if makespan.is_none_or(|makespan| makespan >= upper) {
                return;
            }
        }
        let name = format!("auto ({placement:?}, repeated, {})", means.words());
        self.offer_thinned(name, thinned);
        if self.upper() < upper {
            let order = order.clone();
            self.start = Some((placement, Start { order, means }));
        }
    }
}
