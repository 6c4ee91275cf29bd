//! Interleaved 1F1B: v chunks per device shrink the bubble v times.
//!
//! With p = 2, v = 2, m = 4, Tf = Tb (a column a unit of time):
//! ```text
//! 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1   . 2B2   . 2B3 0B2 0B3
//!   . 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3   .
//! ```
//! Bubble (p−1)(Tf+Tb)/v for m ≥ p. On device r, [(v−1)g + 2(p−1−r) + 1]/v
//! device-micro-batches are in flight (at most m), where micro-batches go in groups
//! of g: p when m is a multiple of it, else ⌈m/⌊m/p⌋⌉. Any p, v and m; placement
//! loop.
//!
//! *Source*: Narayanan et al., "Efficient Large-Scale Language Model Training on
//! GPU Clusters Using Megatron-LM", arXiv:2104.04473, section 2.2.

use super::{Action, Shape, looped};

pub(super) fn lists(shape: Shape) -> Vec<Vec<Action>> {
    let (p, v) = (shape.devices, shape.chunks);
    let group = looped::largest_group(shape);
    looped::lists(shape, |rank| (v - 1) * group + 2 * (p - 1 - rank) + 1, None)
}
