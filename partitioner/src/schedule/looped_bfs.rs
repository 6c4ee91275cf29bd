//! Looped breadth-first: GPipe with v chunks per device.
//!
//! PICTURE
//! All micro-batches pass a chunk before the next chunk starts. Bubble
//! (p−1)(Tf+Tb)/v when m ≥ p, all m micro-batches in flight. Any p, v and m;
//! placement loop.
//!
//! *Source*: Lamy-Poirier, "Breadth-First Pipeline Parallelism",
//! arXiv:2211.05953, section 4.

use super::{Action, Kind, Placement, Shape};
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
    let forwards = (0..shape.chunks).flat_map(|chunk| all(chunk, Kind::Forward));
    let backwards = (0..shape.chunks)
        .rev()
        .flat_map(|chunk| all(chunk, Kind::Backward));
    forwards.chain(backwards).collect()
}
