//! Interleaved zero bubble: ZB-H1 with v chunks per device.
//!
//! PICTURE
//! Device r runs v·p−r units ahead and lets its weight passes lag by r units, so
//! that p device-micro-batches are in flight. Bubble (p−1)(Tf+Ti−Tw)/v when m is a
//! multiple of p and Tw ≤ Ti. Any p, v and m; placement loop.
//!
//! *Source*: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241,
//! section 2.1.1, over the chunks of Narayanan et al., arXiv:2104.04473,
//! section 2.2.

use super::{Action, Shape, looped};

pub(super) fn lists(shape: Shape) -> Vec<Vec<Action>> {
    let group = looped::largest_group(shape);
    let ahead = |rank| (shape.chunks - 1) * group + shape.devices - rank;
    looped::lists(shape, ahead, Some(&|rank| rank))
}
