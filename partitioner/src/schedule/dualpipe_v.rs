//! DualPipeV: one chunk's forward together with the other chunk's backward.
//!
//! PICTURE
//! A forward and the backward after it are an overlapped pair, see
//! [`Schedule::with_pairs`](super::Schedule::with_pairs): the schedule is made for
//! devices that compute one while the other communicates. A pair that takes the
//! sum of both (no overlap) leaves a bubble of p−1 micro-batch passes for
//! Tf = Ti = Tw and m ≥ 2p; devices that run the two one after the other and let
//! the first result leave at once have half of it. p+½ device-micro-batches are in
//! flight. Any p and m, two chunks.
//!
//! *Source*: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437,
//! section 3.2.1 (DualPipe); its V form in DeepSeek's DualPipe repository, after
//! "Cut-in-half" by Sea AI Lab.

use super::vee::{self, Writer};
use super::{Action, Shape};

/// The action lists, and the places of the pairs.
pub(super) type Lists = (Vec<Vec<Action>>, Vec<Vec<usize>>);

pub(super) fn lists(shape: Shape) -> Result<Lists, &'static str> {
    let (p, m) = (shape.devices, shape.micro_batches.max(2 * shape.devices));
    let devices = vee::lists(shape, |rank, writer| list(p, m, rank, writer))?;
    Ok(devices.into_iter().unzip())
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
    for i in 0..m - 2 * p + rank + 1 {
        if i == 0 && after == 0 {
            // Apart, so that the first gradient leaves the last device earlier.
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
    // From the middle of this step on, weight passes are put off.
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
