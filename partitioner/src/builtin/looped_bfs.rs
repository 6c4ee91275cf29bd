//! Looped breadth-first: GPipe with v chunks per device.
//!
//! With p = 2, v = 2, m = 3, Tf = Tb (a column a unit of time):
//! ```text
//! 0F0 0F1 0F2 2F0 2F1 2F2   .   . 2B0 2B1 2B2 0B0 0B1 0B2
//!   . 1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2   .
//! ```
//! All micro-batches pass a chunk before the next chunk starts. Bubble
//! (p−1)(Tf+Tb)/v when m ≥ p, all m micro-batches in flight. Any p, v and m;
//! placement loop.
//!
//! *Source*: Lamy-Poirier, "Breadth-First Pipeline Parallelism",
//! arXiv:2211.05953, section 4.

use super::{Action, ActionKind, Placement, Shape};
use crate::ids::DeviceId;

pub(super) fn lists(shape: Shape) -> Vec<Vec<Action>> {
    (0..shape.devices)
        .map(|device| list(DeviceId(device), shape))
        .collect()
}

fn list(device: DeviceId, shape: Shape) -> Vec<Action> {
    let all = |chunk, kind| {
        let stage = Placement::Loop.stage(chunk, device, shape.devices).index();
        (0..shape.micro_batches).map(move |i| Action::new(stage, kind, i))
    };
    let forwards = (0..shape.chunks).flat_map(|chunk| all(chunk, ActionKind::Forward));
    let backwards = (0..shape.chunks)
        .rev()
        .flat_map(|chunk| all(chunk, ActionKind::Backward));
    forwards.chain(backwards).collect()
}
