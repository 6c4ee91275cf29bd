//! Common parts of the schedules with placement loop.
//!
//! A device with v chunks has v·m units of work per direction. Forwards take the micro-batches in
//! groups of p: a group passes through chunk 0, then chunk 1, …; backwards take the same groups
//! through the chunks in reverse. A device first runs some forwards *ahead*, then alternates one
//! backward and one forward, then ends with backwards. With the backward in halves, weight passes
//! stay some units *behind* the input passes, so that input gradients reach earlier devices sooner,
//! and late weight passes fill idle time.

use super::{Action, ActionKind, Placement, Shape};
use crate::ids::DeviceId;
use std::ops::Range;

/// Returns the lists of all devices. `ahead` is the number of forwards that a device runs before
/// its first backward, `behind` the lag of its weight passes in units; without `behind`, the
/// backward is joint.
pub(super) fn lists(
    shape: Shape,
    ahead: impl Fn(usize) -> usize,
    behind: Option<&dyn Fn(usize) -> usize>,
) -> Vec<Vec<Action>> {
    let list = |rank| {
        let (forward, backward) = units(DeviceId(rank), shape);
        weave(
            &forward,
            &backward,
            ahead(rank),
            behind.map(|behind| behind(rank)),
        )
    };
    (0..shape.devices).map(list).collect()
}

/// Returns stage and micro-batch of each forward and of each backward unit of a device.
fn units(device: DeviceId, shape: Shape) -> (Vec<Unit>, Vec<Unit>) {
    let (p, v, m) = (shape.devices, shape.chunks, shape.micro_batches);
    let stage = |chunk| Placement::Loop.stage(chunk, device, p).index();
    let (mut forward, mut backward) = (Vec::with_capacity(v * m), Vec::with_capacity(v * m));
    for group in groups(p, m) {
        for chunk in 0..v {
            forward.extend(group.clone().map(|micro| (stage(chunk), micro)));
            backward.extend(group.clone().map(|micro| (stage(v - 1 - chunk), micro)));
        }
    }
    (forward, backward)
}

/// Divides m micro-batches into groups that are as equal as possible, of p or as few more as
/// necessary: a group of fewer than p would complete a chunk before the next chunk of the first
/// device has work. Fewer than p micro-batches are one group.
fn groups(p: usize, m: usize) -> impl Iterator<Item = Range<usize>> {
    let count = (m / p).max(1);
    (0..count).map(move |group| group * m / count..(group + 1) * m / count)
}

/// The size of the largest group.
pub(super) fn largest_group(shape: Shape) -> usize {
    let sizes = groups(shape.devices, shape.micro_batches).map(|group| group.len());
    sizes.max().unwrap_or(0)
}

type Unit = (usize, usize);

fn weave(forward: &[Unit], backward: &[Unit], ahead: usize, behind: Option<usize>) -> Vec<Action> {
    let action = |kind, (stage, micro): Unit| Action::new(stage, kind, micro);
    let ahead = ahead.min(forward.len());
    let mut list = Vec::with_capacity(3 * forward.len());
    list.extend(
        forward[..ahead]
            .iter()
            .map(|&unit| action(ActionKind::Forward, unit)),
    );
    for (k, &unit) in backward.iter().enumerate() {
        match behind {
            None => list.push(action(ActionKind::Backward, unit)),
            Some(behind) => {
                list.push(action(ActionKind::BackwardInput, unit));
                let weight = k.checked_sub(behind);
                list.extend(weight.map(|k| action(ActionKind::BackwardWeight, backward[k])));
            }
        }
        list.extend(
            forward
                .get(ahead + k)
                .map(|&unit| action(ActionKind::Forward, unit)),
        );
    }
    if let Some(behind) = behind {
        let rest = &backward[backward.len().saturating_sub(behind)..];
        list.extend(
            rest.iter()
                .map(|&unit| action(ActionKind::BackwardWeight, unit)),
        );
    }
    list
}
