//! Size of the tree in which the gradients of micro-batches may be summed.
//!
//! A step's M micro-batches are divided among k leaves, a power of two. Each leaf is a serial
//! sum, and the leaves' sums are added in a balanced binary tree, the earlier one on the left.
//! One leaf is the serial sum of all micro-batches.

/// Most leaves of a tree; more than a step has micro-batches.
pub const MOST_LEAVES: usize = 1 << 16;

/// Whether a tree can have that many leaves: a power of two, at most [`MOST_LEAVES`].
pub fn can_have_leaves(leaves: usize) -> bool {
    leaves.is_power_of_two() && leaves <= MOST_LEAVES
}

/// Returns the most sets of gradients that a stage has at a time, including that of the leaf being
/// summed: log2(k) + 1 for k leaves or, for M < k micro-batches, ⌈log2(M)⌉ + 1.
///
/// The maximum occurs while the last leaf is summed: one set for each 1 in the binary form of k -
/// 1, and the leaf's own. When two are added, the sum replaces one of them.
///
/// # Examples
/// ```
/// use gpipe_partitioner::tree::gradient_sets;
///
/// assert_eq!(gradient_sets(1, 16), 1);
/// assert_eq!(gradient_sets(8, 16), 4);
/// assert_eq!(gradient_sets(8, 3), 3);
/// ```
pub fn gradient_sets(leaves: usize, micro_batches: usize) -> u64 {
    let micro_batches = micro_batches.max(1).checked_next_power_of_two();
    let both = leaves.max(1).min(micro_batches.unwrap_or(usize::MAX));
    u64::from(both.ilog2()) + 1
}
