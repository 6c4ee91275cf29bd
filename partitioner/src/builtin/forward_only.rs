//! Forward only: inference, no backward at all.
//!
//! With p = 2, v = 2, m = 4, each pass a unit of time (a column a unit of time):
//! ```text
//! 0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3   .
//!   . 1F0 1F1 3F0 3F1 1F2 1F3 3F2 3F3
//! ```
//! Groups of p micro-batches pass through all chunks, so that the first output
//! is there early and no device waits. Idle (p−1)Tf/v when m is a multiple of p.
//! Any p, v and m; placement loop.

use super::{Action, ActionKind, Placement, Shape};
use crate::ids::DeviceId;

pub(super) fn lists(shape: Shape) -> Vec<Vec<Action>> {
    (0..shape.devices)
        .map(|device| list(DeviceId(device), shape))
        .collect()
}

fn list(device: DeviceId, shape: Shape) -> Vec<Action> {
    let (p, m) = (shape.devices, shape.micro_batches);
    let mut actions = Vec::with_capacity(shape.chunks * m);
    for first in (0..m).step_by(p) {
        for chunk in 0..shape.chunks {
            let stage = Placement::Loop.stage(chunk, device, p).index();
            let group = first..(first + p).min(m);
            actions.extend(group.map(|i| Action::new(stage, ActionKind::Forward, i)));
        }
    }
    actions
}
