//! V-Half: two chunks per device in a V, half the memory of 1F1B.
//!
//! With p = 2, v = 2, m = 3, Tf = Ti = Tw (a column a unit of time):
//! ```text
//! 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0I0 3I1 0W0 3W1 3F2 3I2 0I1 3W2 0I2 0W1 0W2   .
//!   . 1F0 2F0 1F1 2F1 2I0 1I0 2W0 1F2 1W0 2F2 2I1 1I1 2I2 1I2 2W1 1W1 2W2 1W2
//! ```
//! The building block of device r starts its four passes at 2r, 3p−2−r, 3p−1+2r
//! and 6p−2−r (the last two later by 3 for even p). At most p/2+1
//! device-micro-batches, rounded down, are in flight; for Tf = Ti = Tw = 1 (a
//! device's micro-batch) the bubble is 2.5 at p = 4 and 8.5 at p = 8, whatever
//! m ≥ p. Any p and m, two chunks.
//!
//! *Source*: Qi et al., "Pipeline Parallelism with Controllable Memory",
//! arXiv:2405.15362, section 4.2.

use super::lists::Needs;
use super::{Action, Shape, building_block};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, Needs> {
    let p = shape.devices;
    building_block::lists(shape, |rank, shift| {
        [
            2 * rank,
            3 * p - 2 - rank,
            3 * p - 1 + 2 * rank + shift,
            6 * p - 2 - rank + shift,
        ]
    })
}
