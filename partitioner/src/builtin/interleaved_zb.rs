//! Interleaved zero bubble: ZB-H1 with v chunks per device.
//!
//! With p = 2, v = 2, m = 2, Tf = Ti = Tw (a column a unit of time):
//! ```text
//! 0F0 0F1 2F0 2F1   . 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1
//!   . 1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1
//! ```
//! Device r runs v·p−r units ahead and lets its weight passes lag by r units, so
//! that p device-micro-batches are in flight. For m ≥ p the bubble is
//! (p−1)(Tf+Ti−Tw)/v when Tw ≤ Tf and Tw ≤ Ti; for a longer Tw it is
//! (p−1)·max(Tf, Ti)/v. When m is not a multiple of p, micro-batches go in groups
//! of g = ⌈m/⌊m/p⌋⌉ instead of p, and [(v−1)g + p]/v are in flight. Any p, v and
//! m; placement loop.
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
