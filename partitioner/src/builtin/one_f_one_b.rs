//! 1F1B: after a warm-up, one forward and one backward in turn.
//!
//! With p = 3, m = 4, Tf = Tb (a column a unit of time):
//! ```text
//! F0 F1 F2  .  . B0 F3 B1  . B2  . B3
//!  . F0 F1  . B0 F2 B1 F3 B2  . B3  .
//!  .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .
//! ```
//! Bubble (p−1)(Tf+Tb) as with GPipe, but device r has only min(m, p−r)
//! micro-batches in flight. Any p and m, one chunk.
//!
//! *Source*: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training"
//! (PipeDream-Flush), arXiv:2006.09503, section 2; Fan et al., "DAPPLE",
//! arXiv:2007.01045, section 3.2.

use super::lists::Needs;
use super::{Action, ActionKind, Shape};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, Needs> {
    if shape.chunks != 1 {
        return Err("one chunk per device (with more of them, it is `interleaved-1f1b`)");
    }
    Ok((0..shape.devices)
        .map(|stage| device(stage, shape))
        .collect())
}

/// Stage r runs p−r forwards ahead, so that the gradient of its first micro-batch arrives just when
/// these are done.
fn device(stage: usize, shape: Shape) -> Vec<Action> {
    let m = shape.micro_batches;
    let ahead = (shape.devices - stage).min(m);
    let forward = |i| Action::new(stage, ActionKind::Forward, i);
    let backward = |i| Action::new(stage, ActionKind::Backward, i);
    let mut actions = Vec::with_capacity(2 * m);
    actions.extend((0..ahead).map(forward));
    for i in ahead..m {
        actions.extend([backward(i - ahead), forward(i)]);
    }
    actions.extend((m - ahead..m).map(backward));
    actions
}
