//! ZB-H1: the backward in halves, with the memory of 1F1B.
//!
//! With p = 3, m = 4, Tf = Ti = Tw (a column a unit of time):
//! ```text
//! F0 F1 F2  .  . I0 W0 F3 I1 W1 I2 W2 I3 W3
//!  . F0 F1  . I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
//!  .  . F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
//! ```
//! Every device keeps p micro-batches in flight: device r, which runs p−r forwards
//! ahead, lets its weight passes lag by r. For m ≥ p the bubble is (p−1)(Tf+Ti−Tw) when
//! Tw ≤ Tf and Tw ≤ Ti, a third of 1F1B's for equal times; for a longer Tw it is
//! (p−1)·max(Tf, Ti). Any p and m, one chunk.
//!
//! *Source*: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241,
//! section 2.1.1.

use super::lists::Needs;
use super::{Action, Shape, looped};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, Needs> {
    if shape.chunks != 1 {
        return Err("one chunk per device (with more of them, it is `interleaved-zb`)");
    }
    Ok(looped::lists(
        shape,
        |rank| shape.devices - rank,
        Some(&|rank| rank),
    ))
}
