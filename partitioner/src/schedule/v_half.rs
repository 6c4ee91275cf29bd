//! V-Half: two chunks per device in a V, half the memory of 1F1B.
//!
//! PICTURE
//! The building block of device r starts its four passes at 2r, 3p−2−r, 3p−1+2r
//! and 6p−2−r (the last two later by 3 for even p). At most p/2+1 device-micro-batches are in flight; for
//! Tf = Ti = Tw the bubble is 2.5 device-micro-batch passes at p = 4 and 8.5 at
//! p = 8, whatever m ≥ p. Any p and m, two chunks.
//!
//! *Source*: Qi et al., "Pipeline Parallelism with Controllable Memory",
//! arXiv:2405.15362, section 4.2.

use super::{Action, Shape, building_block};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, &'static str> {
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
