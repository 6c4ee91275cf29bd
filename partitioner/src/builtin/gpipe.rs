//! GPipe: all forwards, then all backwards.
//!
//! With p = 3, m = 4, Tf = Tb (a column a unit of time):
//! ```text
//! F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3
//!  . F0 F1 F2 F3  .  . B0 B1 B2 B3  .
//!  .  . F0 F1 F2 F3 B0 B1 B2 B3  .  .
//! ```
//! Bubble (p−1)(Tf+Tb), all m micro-batches in flight. Any p and m, one chunk.
//! The paper runs the backwards in reverse; we run them in increasing order,
//! which costs no time and makes gradients the same under every schedule.
//!
//! *Source*: Huang et al., "GPipe: Efficient Training of Giant Neural Networks
//! using Pipeline Parallelism", arXiv:1811.06965, section 2.3.

use super::lists::Needs;
use super::{Action, ActionKind, Shape};

pub(super) fn lists(shape: Shape) -> Result<Vec<Vec<Action>>, Needs> {
    if shape.chunks != 1 {
        return Err("one chunk per device (with more of them, it is `looped-bfs`)");
    }
    let all = |stage, kind| (0..shape.micro_batches).map(move |i| Action::new(stage, kind, i));
    let device = |stage| {
        all(stage, ActionKind::Forward)
            .chain(all(stage, ActionKind::Backward))
            .collect()
    };
    Ok((0..shape.devices).map(device).collect())
}
