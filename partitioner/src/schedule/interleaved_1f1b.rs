//! Interleaved 1F1B: v chunks per device shrink the bubble v times.
//!
//! PICTURE
//! Bubble (p−1)(Tf+Tb)/v and, on device r, [(v−1)p + 2(p−1−r) + 1]/v
//! device-micro-batches in flight, when m is a multiple of p; other m work too,
//! with a last group that is not full. Any p, v and m; placement loop.
//!
//! *Source*: Narayanan et al., "Efficient Large-Scale Language Model Training on
//! GPU Clusters Using Megatron-LM", arXiv:2104.04473, section 2.2.

use super::{Action, Shape, looped};

pub(super) fn lists(shape: Shape) -> Vec<Vec<Action>> {
    let (p, v) = (shape.devices, shape.chunks);
    let group = looped::largest_group(shape);
    looped::lists(shape, |rank| (v - 1) * group + 2 * (p - 1 - rank) + 1, None)
}
