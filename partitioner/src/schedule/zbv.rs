//! ZB-V: two chunks per device in a V, no bubble with the memory of 1F1B.
//!
//! PICTURE
//! For Tf = Ti = Tw and m ≥ 2p−1 no device is idle between its first and its last
//! action, and p device-micro-batches are in flight. The first device ends last:
//! the makespan holds only what device p−1 waits at its start. Any p and m, two
//! chunks.
//!
//! *Source*: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241,
//! section 6 and figure 9.

use super::vee::{self, Writer};
use super::{Action, Shape};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, &'static str> {
    let (p, m) = (
        shape.devices,
        shape.micro_batches.max(2 * shape.devices - 1),
    );
    vee::lists(shape, |rank, writer| list(p, m, rank, writer))
}

/// Warm-up until 2p chunks are in flight, then the six passes of one micro-batch
/// in turn, then input passes first while a device before waits for them.
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
