//! ZB-H1: the backward in halves, with the memory of 1F1B.
//!
//! PICTURE
//! Every device keeps p micro-batches in flight: device r, which runs p−r forwards
//! ahead, lets its weight passes lag by r. Bubble (p−1)(Tf+Ti−Tw) when m ≥ p and
//! Tw ≤ Ti; a third of 1F1B's for equal times. Any p and m, one chunk.
//!
//! *Source*: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241,
//! section 2.1.1.

use super::{Action, Shape, looped};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, &'static str> {
    if shape.chunks != 1 {
        return Err("one chunk per device (interleaved-zb is its like for more)");
    }
    Ok(looped::lists(
        shape,
        |rank| shape.devices - rank,
        Some(&|rank| rank),
    ))
}
