//! DualPipeV: one chunk's forward together with the other chunk's backward.
//!
//! With p = 2, v = 2, m = 4, Tf = Ti = Tw, B as long as both (a column a unit of time):
//! ```text
//! 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3B1   . 3F2 0B0 0B0 3B2 3B2   . 3F3 0B1 0B1 3B3 3B3 0I2 0W2 0I3 0W3
//!   . 1F0 2F0 1F1 2F1 1F2 2B0 2B0 2F2 1B0 1B0 1F3 2B1 2B1 2F3 1B1 1B1 2B2 2B2 1B2 1B2   . 2I3 1I3 2W3 1W3
//! ```
//! A forward and the backward after it are an overlapped pair, see
//! [`Schedule::with_pairs`](crate::Schedule::with_pairs): the schedule is made for
//! devices that compute one while the other communicates. A pair that takes the
//! sum of both (no overlap) leaves a bubble of p−1 micro-batch passes for
//! Tf = Ti = Tw and m ≥ 2p; devices that run the two one after the other and let
//! the first result leave at once have half of it. p+½ device-micro-batches are in
//! flight. Any p and m, two chunks.
//!
//! *Source*: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437,
//! section 3.2.1 (DualPipe); its V form in DeepSeek's DualPipe repository, after
//! "Cut-in-half" by Sea AI Lab.

use super::lists::{Lists, Needs};
use super::vee::{self, Writer};
use super::{Action, Shape};

pub(super) fn lists(shape: Shape) -> Result<Lists, Needs> {
    let (p, m) = (shape.devices, shape.micro_batches.max(2 * shape.devices));
    let devices = vee::lists(shape, |rank, writer| list(p, m, rank, writer))?;
    let (devices, pairs) = devices.into_iter().unzip();
    Ok(Lists { devices, pairs })
}

/// The eight steps of the source.
fn list(p: usize, m: usize, rank: usize, mut w: Writer) -> (Vec<Action>, Vec<usize>) {
    let after = p - 1 - rank;
    for _ in 0..2 * after {
        w.forward(0);
    }
    for _ in 0..=rank {
        w.forward(0);
        w.forward(1);
    }
    for _ in 0..after {
        w.input(1);
        w.weight();
        w.forward(1);
    }
    for i in 0..=m - 2 * p + rank {
        if i == 0 && after == 0 {
            // Not as a pair, so that the first gradient leaves the last device earlier.
            w.forward(0);
            w.backward(1);
        } else {
            w.pair(0);
        }
        w.pair(1);
    }
    for _ in 0..after {
        w.backward(1);
        w.pair(1);
    }
    // From the middle of this step on, weight passes are postponed.
    for i in 0..2 * (rank + 1) {
        let chunk = 1 - i % 2;
        if i < rank + 1 {
            w.backward(chunk);
        } else {
            w.input(chunk);
        }
    }
    for _ in 0..after {
        w.weight();
        w.input(0);
    }
    w.finish_with_pairs()
}
