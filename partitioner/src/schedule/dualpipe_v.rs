//! DualPipeV: one direction's forward beside the other's backward.
//!
//! PICTURE
//! Made for devices that overlap the communication of one pass with the
//! computation of the other; we run the two one after the other. Without overlap,
//! for Tf = Ti = Tw and m ≥ 2p, the bubble is p−1 chunks' Tf+Tb… TODO
//! and p+½ device-micro-batches are in flight. Any p and m, two chunks.
//!
//! *Source*: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437,
//! section 3.2.1 (DualPipe); its V form ("cut in half") by Sea AI Lab, in
//! DeepSeek's DualPipe repository.

use super::vee::{self, Writer};
use super::{Action, Shape};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, &'static str> {
    let (p, m) = (shape.devices, shape.micro_batches.max(2 * shape.devices));
    vee::lists(shape, |rank, writer| list(p, m, rank, writer))
}

/// The eight steps of the source.
fn list(p: usize, m: usize, rank: usize, mut w: Writer) -> Vec<Action> {
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
    for _ in 0..m - 2 * p + rank + 1 {
        w.forward(0);
        w.backward(1);
        w.forward(1);
        w.backward(0);
    }
    for _ in 0..after {
        w.backward(1);
        w.forward(1);
        w.backward(0);
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
    w.finish()
}
