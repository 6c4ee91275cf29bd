//! V-Min: two chunks per device in a V, the least memory of a V.
//!
//! With p = 3, v = 2, m = 3, Tf = Ti = Tw (a column a unit of time):
//! ```text
//! 0F0 0F1 0F2   .   . 5F0 5I0 5W0   .   . 5F1 0I0 5I1 0W0 5W1 5F2 5I2 0I1 5W2 0W1   . 0I2 0W2
//!   . 1F0 1F1 1F2 4F0   .   . 4I0 4W0 4F1 1I0 1W0   . 4I1 4F2 4W1 1I1 4I2 1W1 4W2 1I2 1W2   .
//!   .   . 2F0 3F0 2F1 3F1   .   . 3I0 2I0 3W0 2F2 2W0 3F2 3I1 2I1 3W1 2W1 3I2 2I2 3W2 2W2   .
//! ```
//! The building block of device r starts its four passes at r, 2p−1−r, 2p+r and
//! 4p−1−r (the last two later by 2 when p is a multiple of 3): every pass follows
//! the one before at once. At most (p+4)/3 device-micro-batches, rounded down, are
//! in flight; for Tf = Ti = Tw = 1 (a device's micro-batch) the bubble is 5.5 at
//! p = 4 and 13.5 at p = 8, whatever m ≥ p. Any p and m, two chunks.
//!
//! *Source*: Qi et al., "Pipeline Parallelism with Controllable Memory",
//! arXiv:2405.15362, section 4.1.

use super::lists::Needs;
use super::{Action, Shape, building_block};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, Needs> {
    let p = shape.devices;
    building_block::lists(shape, |rank, shift| {
        [
            rank,
            2 * p - 1 - rank,
            2 * p + rank + shift,
            4 * p - 1 - rank + shift,
        ]
    })
}
