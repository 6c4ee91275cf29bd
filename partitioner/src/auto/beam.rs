//! A search over all orders of the devices' actions in which each stage's forwards, input gradients
//! and weight gradients are in the order of micro-batches: exact, unless it has to drop states for
//! lack of room.
//!
//! Schedules are built action by action, in the order in which actions begin. States with the same
//! actions done are compared: a state that is nowhere later than another makes the other superfluous.
//! States whose lower bound is no better than the best known schedule are dropped. All remaining
//! states of one size are extended before larger ones (dynamic programming by the number of actions);
//! if there are more than `width`, those with the worst bounds are dropped, and the least of these
//! bounds is kept: no such schedule is better than the lesser of that bound and the best schedule
//! found.
//!
//! It suffices to begin actions as soon as their order permits, and to let no device wait past the end
//! of another action that it could have done meanwhile: moving that action into the gap delays
//! nothing. Among the best schedules, the search finds the one with the least sum of start times.

use super::pipeline::Pipeline;
use super::remaining::Remaining;
use super::state::{Choice, Done, Move, State};
use crate::schedule::Action;
use std::collections::{BTreeMap, HashMap};

/// Relative distance from the best makespan below which a bound counts as no better.
const CLOSE: f64 = 1e-9;

/// Result of a search.
pub(super) struct Found {
    /// Lists of the best schedule, if it is better than `upper`.
    pub(super) lists: Option<Vec<Vec<Action>>>,
    /// Lower bound on every schedule's makespan, in microseconds.
    pub(super) bound: f64,
}

/// A state with its bound.
struct Node {
    state: State,
    bound: f64,
    /// Among equal bounds, states whose devices have waited less are preferred.
    tie: f64,
    /// Index of the last action in the history.
    last: usize,
}

/// Actions done, by which states are compared.
type Key = (Vec<Done>, Vec<u64>);

/// States of one size.
#[derive(Default)]
struct Layer {
    nodes: Vec<Option<Node>>,
    places: HashMap<Key, Vec<usize>>,
}

/// Marks that no action comes before.
const START: usize = usize::MAX;

/// Searches for a schedule that is shorter than `upper` microseconds, keeping `width` states of each
/// size.
///
/// # Complexity
/// O(width · stages² · micro-batches²) times the number of states that one state is compared with.
pub(super) fn search(pipeline: &Pipeline, width: usize, upper: f64) -> Found {
    let mut search = BeamSearch {
        pipeline,
        remaining: Remaining::new(pipeline),
        history: Vec::new(),
        upper,
        best: None,
        dropped: f64::INFINITY,
        layers: BTreeMap::new(),
    };
    search.run(width);
    let lists = search.best.map(|(last, _)| search.lists(last));
    Found {
        lists,
        bound: search.upper.min(search.dropped),
    }
}

struct BeamSearch<'a> {
    pipeline: &'a Pipeline,
    remaining: Remaining<'a>,
    /// Actions with their devices and the indices of the actions before them.
    history: Vec<(usize, usize, Action)>,
    upper: f64,
    best: Option<(usize, f64)>,
    /// The least bound among states dropped because there were too many.
    dropped: f64,
    layers: BTreeMap<usize, Layer>,
}

impl BeamSearch<'_> {
    fn run(&mut self, width: usize) {
        let whole = 4 * self.pipeline.stages.len() * self.pipeline.micro_batches;
        let state = State::new(self.pipeline);
        self.keep(0, state, START);
        while let Some((units, layer)) = self.layers.pop_first() {
            let mut nodes: Vec<Node> = layer.nodes.into_iter().flatten().collect();
            if units == whole {
                self.finish(nodes);
                continue;
            }
            // A better schedule may have been found since.
            nodes.retain(|node| self.is_better(node.bound));
            // The sort is stable: among equals, the first one stays first.
            nodes.sort_by(|a, b| (a.bound.total_cmp(&b.bound)).then(a.tie.total_cmp(&b.tie)));
            if let Some(worse) = nodes.get(width) {
                self.dropped = self.dropped.min(worse.bound);
                nodes.truncate(width);
            }
            for node in nodes {
                self.extend(units, &node);
            }
        }
    }

    fn is_better(&self, bound: f64) -> bool {
        bound < self.upper * (1.0 - CLOSE)
    }

    fn finish(&mut self, nodes: Vec<Node>) {
        for node in nodes {
            let makespan = node.state.free.iter().copied().fold(0.0, f64::max);
            if self.is_better(makespan) {
                self.upper = makespan;
                self.best = Some((node.last, makespan));
            }
        }
    }

    fn extend(&mut self, units: usize, node: &Node) {
        let mut choices = Vec::new();
        for device in 0..self.pipeline.devices.len() {
            choices.clear();
            node.state.choices(self.pipeline, device, &mut choices);
            for choice in &choices {
                if choice.start < node.state.now || self.leaves_a_gap(&node.state, choice, &choices)
                {
                    continue;
                }
                let action = node.state.action(choice.stage, choice.what);
                let mut state = node.state.clone();
                state.apply(self.pipeline, choice);
                let place = self.history.len();
                if self.keep(units + choice.what.units(), state, place) {
                    self.history.push((node.last, device, action));
                }
            }
        }
    }

    /// Whether another action could end before `choice` begins, without harm.
    fn leaves_a_gap(&self, state: &State, choice: &Choice, others: &[Choice]) -> bool {
        others.iter().any(|other| {
            other.end <= choice.start
                && other.end > other.start
                && self.is_harmless(state, other, choice)
        })
    }

    /// Whether `first` neither takes memory that `then` or a later action needs, nor keeps a link busy
    /// past the end of `then`.
    fn is_harmless(&self, state: &State, first: &Choice, then: &Choice) -> bool {
        let own = &self.pipeline.stages[first.stage];
        // A later joint backward of this micro-batch is longer than the half that fits here: if it
        // saves work, it may be better than both halves.
        let saves = |joint: f64| own.halves.is_some_and(|[i, w]| joint < i + w);
        if first.what == Move::Input && own.joint.is_some_and(saves) {
            return false;
        }
        let way = match first.what {
            Move::Forward => own.onward,
            Move::Joint | Move::Input => own.back,
            Move::Weight => None,
            Move::Dropping | Move::Recompute => return false,
        };
        let sent = way.map_or(0.0, |way| {
            first.end.max(state.links[way.link]) + way.occupancy
        });
        let is_first = state.done[first.stage].weight == 0;
        let takes = own.bytes.step(first.what, is_first).after > 0;
        let roomy = self.pipeline.devices[own.device].cap.is_none();
        sent <= then.end && (roomy || !takes)
    }

    /// Keeps `state` among the states of its size, unless another one makes it superfluous.
    fn keep(&mut self, units: usize, state: State, last: usize) -> bool {
        let bound = self.remaining.bound(&state);
        if !self.is_better(bound) {
            return false;
        }
        let tie = self.remaining.projected(&state);
        let layer = self.layers.entry(units).or_default();
        let key = (state.done.clone(), state.dropped.clone());
        let places = layer.places.entry(key).or_default();
        let nodes = &mut layer.nodes;
        let other = |place: &usize| nodes[*place].as_ref().map(|node| &node.state);
        if (places.iter().filter_map(other))
            .any(|other| other.is_no_later_than(&state, self.pipeline))
        {
            return false;
        }
        places.retain(|&place| {
            let kept = nodes[place].as_ref();
            let superfluous =
                kept.is_some_and(|node| state.is_no_later_than(&node.state, self.pipeline));
            if superfluous {
                nodes[place] = None;
            }
            !superfluous
        });
        places.push(nodes.len());
        nodes.push(Some(Node {
            state,
            bound,
            tie,
            last,
        }));
        true
    }

    fn lists(&self, last: usize) -> Vec<Vec<Action>> {
        let mut lists = vec![Vec::new(); self.pipeline.devices.len()];
        let mut place = last;
        while let Some(&(before, device, action)) = self.history.get(place) {
            lists[device].push(action);
            place = before;
        }
        lists.iter_mut().for_each(|list| list.reverse());
        lists
    }
}
