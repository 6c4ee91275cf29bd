//! ZB-H2: twice the memory of ZB-H1, and no bubble for equal times.
//!
//! With p = 3, m = 5, Tf = Ti = Tw (a column a unit of time):
//! ```text
//! F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4  .  .
//!  . F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4  .
//!  .  . F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4
//! ```
//! Device r runs 2(p−r)−1 forwards ahead and lets its weight passes lag by 2r, so
//! that 2p−1 micro-batches are in flight. For Tf = Ti = Tw and m ≥ 2p−1 no device
//! is idle between its first and its last action. Devices start one after the
//! other, so that the makespan still holds (p−1)Tf of idle time: a device that is
//! done may go on with the next mini-batch. Any p and m, one chunk.
//!
//! *Source*: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241,
//! section 2.1.2.

use super::lists::Needs;
use super::{Action, Shape, looped};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, Needs> {
    if shape.chunks != 1 {
        return Err("one chunk per device (zbv is its like for two)");
    }
    let ahead = |rank| 2 * (shape.devices - rank) - 1;
    Ok(looped::lists(shape, ahead, Some(&|rank| 2 * rank)))
}
