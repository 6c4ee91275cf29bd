//! What follows from the order of tasks in the devices' lists: what stages are told ahead, and
//! whose turn it is where devices share too few cores.

use super::program::DeviceProgram;
use super::replicas::Replicas;
use super::stage::ActivationHint;
use super::task::Task;
use gpipe_partitioner::{Action, ActionKind, DeviceId, urgencies};
use std::collections::HashSet;

/// Compiles, once, what a stage is told about the action after the one that it runs.
pub(super) fn add_hints(program: &mut DeviceProgram) {
    // The action before, whatever of an exchange comes in between.
    let mut last = None;
    for at in 0..program.ops.len() {
        let Task::Action(next) = program.ops[at].task else {
            continue;
        };
        if let Some((place, before)) = last.replace((at, next))
            && next.kind.consumes_activations()
        {
            let forward = Action {
                kind: ActionKind::Forward,
                ..next
            };
            let hint = if before == forward {
                ActivationHint::Keep(next)
            } else {
                ActivationHint::Prefetch(next)
            };
            program.ops[place].hint = Some((program.ops[at].local, hint));
        }
    }
    add_forward_hints(program);
}

/// What a stage is told before a forward of it.
fn add_forward_hints(program: &mut DeviceProgram) {
    let actions = program.ops.iter().filter_map(|op| match op.task {
        Task::Action(action) => Some(action),
        Task::Exchange { .. } | Task::Close { .. } => None,
    });
    let recomputes = actions.filter(|action| action.kind == ActionKind::Recompute);
    let recomputes: HashSet<Action> = recomputes.collect();
    if recomputes.is_empty() {
        return;
    }
    for op in &mut program.ops {
        let Task::Action(action) = op.task else {
            continue;
        };
        let again = action.with(ActionKind::Recompute);
        if action.kind == ActionKind::Forward && recomputes.contains(&again) {
            op.forward_hint = Some(ActivationHint::Recompute(again));
        }
    }
}

/// How urgent each task is: the longest chain of tasks that begins with it. Exchanges lengthen
/// the chains of all actions alike, so that these keep their order among themselves.
pub(super) fn add_urgencies(replicas: &Replicas, devices: &mut [DeviceProgram]) {
    let mesh = replicas.shares.mesh;
    let most_stages = devices.iter().map(|own| own.stages.len()).max();
    let behind = match replicas.tail(most_stages.unwrap_or(0)) {
        0 => 0,
        tail => u32::try_from(tail + 1).unwrap_or(u32::MAX),
    };
    for replica in 0..mesh.replicas() {
        let place = |place| mesh.device(DeviceId(place), replica).index();
        let elsewhere = |device: usize| devices[device].ops.is_empty();
        if (0..mesh.pipeline()).map(place).all(elsewhere) {
            continue;
        }
        let chains = replicas.schedule(replica).map(urgencies);
        let chains = chains.unwrap_or_default();
        for place in 0..mesh.pipeline() {
            let device = &mut devices[mesh.device(DeviceId(place), replica).index()];
            let mut actions = chains.get(place).into_iter().flatten().rev();
            let mut next: u32 = 0;
            for op in device.ops.iter_mut().rev() {
                let chain = match op.task {
                    Task::Action(_) => actions.next().map(|own| own.saturating_add(behind)),
                    Task::Exchange { .. } | Task::Close { .. } => None,
                };
                op.urgency = chain.unwrap_or_else(|| next.saturating_add(1));
                next = op.urgency;
            }
        }
    }
}
