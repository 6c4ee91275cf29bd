//! Sums over micro-batches as the leaves of a binary tree.
//!
//! A step's M micro-batches are divided among k leaves, a power of two: leaf j has the
//! micro-batches from jM/k up to (j+1)M/k, rounded down, and sums them serially, in order. The
//! leaves' sums are added in a balanced binary tree, the earlier one on the left. The order of
//! additions depends only on M and k.
//!
//! ```text
//! k = 4, M = 6     ((g0 + (g1 + g2)) + (g3 + (g4 + g5)))
//!                    leaf 0   leaf 1     leaf 2   leaf 3
//! ```
//!
//! The tree is a binary counter: after leaf j there is one sum for each 1 in the binary form of
//! j + 1. A leaf without micro-batches is absent, and absent + x is x: nothing is added, not even
//! zeros, which would turn -0.0 into 0.0.
//!
//! Replicas of a pipeline, d of them (a power of two, at most k), share the tree: replica r owns
//! the k/d leaves from leaf rk/d on, which are all the leaves below one node, and with them the
//! micro-batches from rM/d up to (r+1)M/d, rounded down. The counter of its own leaves ends with
//! the sum at this node, and the exchange between replicas (`exchange.rs`) continues through the
//! log2(d) levels above, with the bits of one process. The last leaves of a replica, unlike those
//! of the whole tree, may be absent: so a counter is told when the step is over
//! ([`Leaves::finish`]).

use std::ops::Range;

/// The sums of the leaves of one step that are not yet in their place.
#[derive(Debug)]
pub(super) struct Leaves<S> {
    /// Number of leaves of the tree.
    count: usize,
    /// Leaves counted here, which are all leaves below one node.
    own: Range<usize>,
    micro_batches: usize,
    /// Completed own leaves.
    closed: usize,
    /// Sums at nodes that wait for the sum on their right, the earliest first; `None` if all leaves
    /// below are absent.
    waiting: Vec<Option<S>>,
}

impl<S> Leaves<S> {
    /// Creates the counter of the `own` leaves of a tree: all, or those below one node.
    pub(super) fn new(leaves: usize, own: Range<usize>) -> Self {
        Self {
            count: leaves,
            own,
            micro_batches: 0,
            closed: 0,
            waiting: Vec::new(),
        }
    }

    /// Begins a step of so many micro-batches.
    pub(super) fn begin(&mut self, micro_batches: usize) {
        self.clear();
        self.micro_batches = micro_batches;
    }

    /// The first micro-batch of the own leaves.
    pub(super) fn first(&self) -> usize {
        self.own.start * self.micro_batches / self.count
    }

    /// Drops all sums.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.closed = 0;
    }

    /// Returns whether a leaf's sum is complete after the first `added` micro-batches; 1 or more.
    pub(super) fn end_at(&self, added: usize) -> bool {
        // With more leaves than micro-batches, each micro-batch has its own leaf.
        let leaf = self.leaf_of(added - 1);
        self.end_of(leaf) == added
    }

    /// Returns the leaf of a micro-batch: the first one that ends after it.
    fn leaf_of(&self, micro: usize) -> usize {
        // The first j for which (j+1)M/k, rounded down, is at least `micro` + 1.
        ((micro + 1) * self.count).div_ceil(self.micro_batches) - 1
    }

    /// Returns the first micro-batch after a leaf.
    fn end_of(&self, leaf: usize) -> usize {
        (leaf + 1) * self.micro_batches / self.count
    }

    /// The leaf that ends with the first `added` micro-batches is over, with this sum. Gives
    /// the sum of all own leaves, if it was the last of them.
    pub(super) fn close<E>(
        &mut self,
        added: usize,
        sum: S,
        mut add: impl FnMut(S, S) -> Result<S, E>,
    ) -> Result<Option<S>, E> {
        let leaf = self.leaf_of(added - 1) - self.own.start;
        while self.closed < leaf {
            self.put(None, &mut add)?;
        }
        self.put(Some(sum), &mut add)?;
        let all = self.closed == self.own.len();
        Ok(if all {
            self.waiting.pop().flatten()
        } else {
            None
        })
    }

    /// Ends the step: own leaves after the last closed one are absent. Returns the sum of all own
    /// leaves, unless [`Leaves::close`] has returned it, or all are absent.
    pub(super) fn finish<E>(
        &mut self,
        mut add: impl FnMut(S, S) -> Result<S, E>,
    ) -> Result<Option<S>, E> {
        while self.closed < self.own.len() {
            self.put(None, &mut add)?;
        }
        Ok(self.waiting.pop().flatten())
    }

    /// Adds a leaf, and completes all nodes that end with it.
    fn put<E>(
        &mut self,
        mut sum: Option<S>,
        add: &mut impl FnMut(S, S) -> Result<S, E>,
    ) -> Result<(), E> {
        self.closed += 1;
        for _ in 0..self.closed.trailing_zeros() {
            sum = match (self.waiting.pop().flatten(), sum) {
                (Some(left), Some(right)) => Some(add(left, right)?),
                (left, right) => left.or(right),
            };
        }
        self.waiting.push(sum);
        Ok(())
    }

    /// The sums that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &S> {
        self.waiting.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpipe_partitioner::tree::gradient_sets;
    use std::convert::Infallible;

    /// A sum as it is written.
    type Sum = Option<String>;

    fn plus(left: Sum, right: Sum) -> Sum {
        match (left, right) {
            (Some(left), Some(right)) => Some(format!("({left} + {right})")),
            (left, right) => left.or(right),
        }
    }

    fn node(sums: &[Sum]) -> Sum {
        if let [sum] = sums {
            return sum.clone();
        }
        let (left, right) = sums.split_at(sums.len() / 2);
        plus(node(left), node(right))
    }

    /// The definition: serial sums of the leaves, and halves of halves of them.
    fn defined(micro_batches: usize, leaves: usize) -> Sum {
        let leaf = |j: usize| {
            let micros = j * micro_batches / leaves..(j + 1) * micro_batches / leaves;
            micros.map(|micro| Some(micro.to_string())).fold(None, plus)
        };
        node(&(0..leaves).map(leaf).collect::<Vec<_>>())
    }

    /// Returns a counter's result for a step, and the most sums at a time, including the current
    /// leaf's.
    fn counted(leaves: &mut Leaves<String>, micro_batches: usize) -> (Sum, usize) {
        leaves.begin(micro_batches);
        let (mut leaf, mut all, mut most) = (None, None, 0);
        for micro in 0..micro_batches {
            leaf = plus(leaf, Some(micro.to_string()));
            most = most.max(leaves.waiting().count() + 1);
            if leaves.end_at(micro + 1) {
                assert_eq!(all, None, "the last leaf ends with the last micro-batch");
                let add = |left, right| Ok::<_, Infallible>(plus(Some(left), Some(right)).unwrap());
                let Ok(sum) = leaves.close(micro + 1, leaf.take().unwrap(), add);
                all = sum;
            }
        }
        assert_eq!((leaf, leaves.waiting().count()), (None, 0));
        (all, most)
    }

    #[test]
    fn the_counter_adds_as_the_tree_is_defined() {
        for leaves in [1, 2, 4, 8, 16, 64] {
            let mut counter = Leaves::new(leaves, 0..leaves);
            for micro_batches in 1..=40 {
                let (sum, most) = counted(&mut counter, micro_batches);
                let case = format!("{micro_batches} micro-batches, {leaves} leaves");
                assert_eq!(sum, defined(micro_batches, leaves), "{case}");
                let sets = gradient_sets(leaves, micro_batches);
                assert_eq!(most as u64, sets, "{case}");
            }
        }
    }

    /// Returns the combined result of the counters of so many replicas.
    fn shared(leaves: usize, replicas: usize, micro_batches: usize) -> Sum {
        let share = leaves / replicas;
        let own = |replica: usize| {
            let mut counter = Leaves::new(leaves, replica * share..(replica + 1) * share);
            let add = |left, right| Ok::<_, Infallible>(plus(Some(left), Some(right)).unwrap());
            // As after a failed step.
            counter.begin(micro_batches);
            let _ = counter.finish(add);
            counter.begin(micro_batches);
            let (mut leaf, mut all) = (None, None);
            let end = (replica + 1) * micro_batches / replicas;
            assert_eq!(counter.first(), replica * micro_batches / replicas);
            for micro in counter.first()..end {
                leaf = plus(leaf, Some(micro.to_string()));
                if counter.end_at(micro + 1) {
                    let Ok(sum) = counter.close(micro + 1, leaf.take().unwrap(), add);
                    all = plus(all, sum);
                }
            }
            let Ok(rest) = counter.finish(add);
            assert!(leaf.is_none() && (all.is_none() || rest.is_none()));
            all.or(rest)
        };
        node(&(0..replicas).map(own).collect::<Vec<_>>())
    }

    #[test]
    fn replicas_that_share_the_leaves_add_as_one_does() {
        for leaves in [1_usize, 2, 4, 8, 16] {
            for level in 0..=leaves.ilog2() {
                for micro_batches in 1..=20 {
                    let sum = shared(leaves, 1 << level, micro_batches);
                    let case = format!("{micro_batches} of {leaves} over {}", 1 << level);
                    assert_eq!(sum, defined(micro_batches, leaves), "{case}");
                }
            }
        }
    }

    #[test]
    fn examples_by_hand() {
        for (leaves, micro_batches, sum) in [
            (1, 3, "((0 + 1) + 2)"),
            (2, 5, "((0 + 1) + ((2 + 3) + 4))"),
            (4, 6, "((0 + (1 + 2)) + (3 + (4 + 5)))"),
            (4, 3, "(0 + (1 + 2))"),
            (8, 1, "0"),
        ] {
            let (own, _) = counted(&mut Leaves::new(leaves, 0..leaves), micro_batches);
            assert_eq!(own.unwrap(), sum);
        }
    }

    #[test]
    fn what_a_step_has_left_is_gone_in_the_next() {
        let mut leaves = Leaves::new(4, 0..4);
        leaves.begin(4);
        let add = |_, _| Err("no sum is complete yet");
        assert_eq!(leaves.close(1, "wrong".to_owned(), add), Ok(None));
        assert_eq!(leaves.waiting().count(), 1);
        assert_eq!(counted(&mut leaves, 4).0.unwrap(), "((0 + 1) + (2 + 3))");
        leaves.begin(4);
        assert_eq!(leaves.close(1, "wrong".to_owned(), add), Ok(None));
        leaves.clear();
        assert_eq!(leaves.waiting().count(), 0);
    }
}
