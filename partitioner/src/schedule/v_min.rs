//! V-Min: two chunks per device in a V, the least memory of a V.
//!
//! PICTURE
//! The building block of device r starts its four passes at r, 2p−1−r, 2p+r and
//! 4p−1−r (the last two later by 2 when p is a multiple of 3): every pass follows
//! the one before at once. At most (p+4)/3 device-micro-batches, rounded down, are
//! in flight; for Tf = Ti = Tw the bubble is 5.5 device-micro-batch passes at
//! p = 4 and 13.5 at p = 8, whatever m ≥ p. Any p and m, two chunks.
//!
//! *Source*: Qi et al., "Pipeline Parallelism with Controllable Memory",
//! arXiv:2405.15362, section 4.1.

use super::{Action, Shape, building_block};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, &'static str> {
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
