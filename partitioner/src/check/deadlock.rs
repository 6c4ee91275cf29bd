//! Explanation of a deadlock: the cycle of waiting devices.

use super::error::{Blocked, CheckError};
use crate::ids::DeviceId;
use crate::schedule::{Action, Schedule};
use crate::walk::{Stuck, needs};

/// Returns the cycle of waiting devices in a complete schedule that got stuck.
///
/// Every blocked device waits for an action that exists and is not done: it is further down in the
/// list of a device, which is therefore blocked too. Going from device to device must return to one
/// seen before.
pub(super) fn explain(schedule: &Schedule, owner: &[u32], stuck: &Stuck) -> CheckError {
    let blocked = |device: DeviceId| blocked(schedule, owner, stuck, device);
    let start = schedule
        .iter()
        .find(|(device, list)| stuck.heads[device.index()] < list.len())
        .and_then(|(device, _)| blocked(device));
    let mut chain: Vec<Blocked> = Vec::new();
    let mut place = vec![usize::MAX; schedule.devices()];
    let mut next = start;
    while let Some(here) = next {
        if place[here.device.index()] != usize::MAX {
            chain.drain(..place[here.device.index()]);
            break;
        }
        place[here.device.index()] = chain.len();
        next = blocked(here.on);
        chain.push(here);
    }
    CheckError::Deadlock { cycle: chain }
}

/// Returns the next action of `device`, and the first pending action that it waits for.
fn blocked(schedule: &Schedule, owner: &[u32], stuck: &Stuck, device: DeviceId) -> Option<Blocked> {
    let position = stuck.heads[device.index()];
    let action = *schedule.actions(device).get(position)?;
    let pending = |need: &Action| {
        let on = DeviceId(owner[need.stage.index()] as usize);
        schedule.actions(on)[stuck.heads[on.index()]..].contains(need)
    };
    // A forward that starts a pair also waits for the inputs of its partner.
    let partner = schedule.partner(device, position);
    let needs = |action| needs(action, schedule.stages());
    let all = needs(action)
        .into_iter()
        .chain(partner.into_iter().flat_map(needs));
    let waits_for = all.into_iter().find(|need| pending(need))?;
    let on = DeviceId(owner[waits_for.stage.index()] as usize);
    Some(Blocked {
        device,
        position,
        action,
        waits_for,
        on,
    })
}
