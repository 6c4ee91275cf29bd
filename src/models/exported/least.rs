//! Decides which of the nodes between two layers join the first one, so that the fewest bytes cross the
//! cut between them.
//!
//! A node can join the first layer only with all its inputs. A value crosses if its maker is in the
//! first layer and one of its users is not. The least sum of crossing values is a minimum cut of a
//! network: an edge with a value's bytes leads from its maker to the value, edges of unlimited capacity
//! lead from the value to all its users, and from each node back to its inputs. Of several minima, the
//! one with the most nodes in the first layer is taken.

use std::collections::VecDeque;

/// The first layer, and the second.
const SOURCE: usize = 0;
const SINK: usize = 1;
const ENDLESS: u64 = u64::MAX / 4;

/// A value that nodes between the layers make or use.
#[derive(Debug)]
pub(super) struct Crossing {
    /// The node that makes it; `None` if it is made in the first layer.
    pub(super) maker: Option<usize>,
    /// The nodes that use it.
    pub(super) takers: Vec<usize>,
    /// Whether the second layer also uses it.
    pub(super) behind: bool,
    /// Cost of crossing the cut.
    pub(super) cost: u64,
}

/// Returns, for each of `count` nodes, whether it joins the first layer.
///
/// # Complexity
/// O(paths · edges), with a path for each value in most cases.
///
/// # Source
/// Edmonds and Karp, *Theoretical improvements in algorithmic efficiency for network flow
/// problems*, 1972.
pub(super) fn in_front(count: usize, values: &[Crossing]) -> Vec<bool> {
    let mut network = Network::new(2 + count + values.len());
    let node = |number: usize| 2 + number;
    for (number, own) in values.iter().enumerate() {
        let value = 2 + count + number;
        let maker = own.maker.map_or(SOURCE, node);
        network.edge(maker, value, own.cost.min(ENDLESS - 1));
        for taker in &own.takers {
            network.edge(value, node(*taker), ENDLESS);
            if own.maker.is_some() {
                network.edge(node(*taker), maker, ENDLESS);
            }
        }
        if own.behind {
            network.edge(value, SINK, ENDLESS);
        }
    }
    while network.augment() {}
    let behind = network.reaching_the_sink();
    (0..count).map(|number| !behind[node(number)]).collect()
}

/// Edges are stored in pairs with their reverses, whose indices differ in the last bit.
struct Network {
    ends: Vec<usize>,
    left: Vec<u64>,
    from: Vec<Vec<usize>>,
}

impl Network {
    fn new(places: usize) -> Self {
        Self {
            ends: Vec::new(),
            left: Vec::new(),
            from: vec![Vec::new(); places],
        }
    }

    fn edge(&mut self, from: usize, to: usize, capacity: u64) {
        for (begin, end, left) in [(from, to, capacity), (to, from, 0)] {
            self.from[begin].push(self.ends.len());
            self.ends.push(end);
            self.left.push(left);
        }
    }

    /// Sends as much as possible along a shortest path with capacity; false if there is none.
    fn augment(&mut self) -> bool {
        let mut by = vec![None; self.from.len()];
        let mut queue = VecDeque::from([SOURCE]);
        while let Some(place) = queue.pop_front() {
            for edge in &self.from[place] {
                let end = self.ends[*edge];
                if self.left[*edge] > 0 && end != SOURCE && by[end].is_none() {
                    by[end] = Some(*edge);
                    queue.push_back(end);
                }
            }
        }
        let mut path = Vec::new();
        let mut place = SINK;
        while let Some(edge) = by[place] {
            path.push(edge);
            place = self.ends[edge ^ 1];
        }
        let Some(room) = path.iter().map(|edge| self.left[*edge]).min() else {
            return false;
        };
        for edge in path {
            self.left[edge] -= room;
            self.left[edge ^ 1] = self.left[edge ^ 1].saturating_add(room);
        }
        true
    }

    /// Returns the nodes from which more could be sent to the sink.
    fn reaching_the_sink(&self) -> Vec<bool> {
        let mut reaching = vec![false; self.from.len()];
        reaching[SINK] = true;
        let mut queue = VecDeque::from([SINK]);
        while let Some(place) = queue.pop_front() {
            for edge in &self.from[place] {
                let begin = self.ends[*edge];
                if self.left[*edge ^ 1] > 0 && !reaching[begin] {
                    reaching[begin] = true;
                    queue.push_back(begin);
                }
            }
        }
        reaching
    }
}
