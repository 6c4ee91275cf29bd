//! ZB-V: two chunks per device in a V, no bubble with the memory of 1F1B.
//!
//! With p = 2, v = 2, m = 3, Tf = Ti = Tw (a column a unit of time):
//! ```text
//! 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2   .
//!   . 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
//! ```
//! For Tf = Ti = Tw and m ≥ 2p−1 no device is idle between its first and its last
//! action, and p device-micro-batches are in flight. The makespan holds
//! (p−1)/2 forward times more than the work: devices start one after the other. Any
//! p and m, two chunks.
//!
//! *Source*: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241,
//! section 6 and figure 9.

use super::lists::Needs;
use super::vee::{self, Writer};
use super::{Action, Shape};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, Needs> {
    let (p, m) = (
        shape.devices,
        shape.micro_batches.max(2 * shape.devices - 1),
    );
    vee::lists(shape, |rank, writer| list(p, m, rank, writer))
}

/// Warm-up until 2p chunks are in flight, then the six passes of one micro-batch in turn, then
/// input passes first while an earlier device waits for them.
fn list(p: usize, m: usize, rank: usize, mut w: Writer) -> Vec<Action> {
    for _ in 0..2 * (p - rank) - 1 {
        w.forward(0);
    }
    for _ in 0..rank {
        w.forward(1);
        w.forward(0);
    }
    for _ in 0..p - rank {
        w.forward(1);
        w.input(1);
        w.weight();
    }
    while w.forwards(1) < m {
        if w.forwards(0) < m {
            w.forward(0);
        }
        w.input(0);
        w.weight();
        w.forward(1);
        w.input(1);
        w.weight();
    }
    for _ in 0..rank {
        w.input(0);
        w.input(1);
    }
    for _ in 0..p - rank {
        w.input(0);
        w.weight();
    }
    w.finish()
}
