//! Candidates whose order repeats (modules `pattern` and `follow`).

use super::candidates::{CandidateSearch, LARGEST};
use super::follow::{self, More, Rule};
use super::local::Replay;
use super::pattern::Block;
use super::pipeline::Pipeline;
use super::refine::Start;
use super::thin::{self, Means};
use crate::schedule::{Placement, Schedule};

/// By how much fewer orders are tried than changes made: each is made anew, action by action.
const MADE: usize = 4;
/// An order is also made for memory for so many more micro-batches of a chunk, with as many recomputes,
/// or as much offloaded, as make it fit.
const MOST_MORE: usize = 4;
/// So many last micro-batches, at most, may have more memory than the others.
const LAST: usize = 8;

impl CandidateSearch<'_> {
    /// Where schedules would be shorter with more memory, orders that repeat: about as many as half of `moves` at
    /// most.
    pub(super) fn repeat(&mut self, placement: Placement, moves: usize) {
        let cells = self.shape.stages() * self.shape.micro_batches;
        if moves < MADE || cells >= LARGEST || !self.lacks_memory() {
            return;
        }
        let pipeline = Pipeline::new(self.shape, placement, self.costs, self.caps);
        let blocks = Block::all(&pipeline);
        // Evenly from all, in so many turns.
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
        // The best of all with more memory for the last micro-batches alone: then the device has something
        // to do while those are on their way back.
        let (p, m) = (self.shape.devices.min(LAST), self.shape.micro_batches);
        let lasts = (1..=p)
            .flat_map(|chunks| (m.saturating_sub(p)..m).map(move |from| More { chunks, from }));
        if let Some(own) = by {
            for more in lasts.take(moves / MADE) {
                self.repeat_with(placement, &pipeline, (own, more));
            }
        }
    }

    /// An order for more memory than there is, and what makes it fit.
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
        // Without offload it is known how long it takes, at much less cost than a candidate's.
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
