//! Consequences of the order of tasks: hints about activations, and priorities where devices share
//! too few cores.

use super::program::DeviceProgram;
use super::replicas::Replicas;
use super::stage::ActivationHint;
use super::task::Task;
use gpipe_partitioner::{
    Action, ActionKind, CheckedSchedule, DeviceId, MicroId, StageId, urgencies,
};
use std::collections::{BTreeSet, HashMap};

/// Compiles the hints about activations. `own` is the schedule of the device's replica, if it has
/// one, and the number of the replica's first micro-batch.
pub(super) fn add_hints(program: &mut DeviceProgram, own: (Option<&CheckedSchedule>, usize)) {
    // The previous action; exchanges in between do not count.
    let mut last = None;
    for at in 0..program.ops.len() {
        let Task::Action(next) = program.ops[at].task else {
            continue;
        };
        if let Some((place, before)) = last.replace((at, next))
            && next.kind.consumes_activations()
        {
            let hint = if before == next.with(ActionKind::Forward) {
                ActivationHint::Keep(next)
            } else {
                ActivationHint::Prefetch(next)
            };
            let local = program.ops[at].local;
            program.ops[place].hints.push((local, hint));
        }
    }
    add_forward_hints(program, own);
}

/// Adds the hints before forwards: `Recompute` if an `R` follows, `Keep` if the schedule offloads
/// activations of others only.
fn add_forward_hints(
    program: &mut DeviceProgram,
    (schedule, first): (Option<&CheckedSchedule>, usize),
) {
    let none = BTreeSet::new();
    let offloads = schedule.map_or(&none, |own| own.schedule().offloads());
    let of = |action: Action| (action.stage, action.micro);
    // The first action that consumes the activations of a forward.
    let mut consumers: HashMap<(StageId, MicroId), Action> = HashMap::new();
    for op in program.ops.iter().rev() {
        match op.task {
            Task::Action(action) if action.kind.consumes_activations() => {
                consumers.insert(of(action), action);
            }
            _ => {}
        }
    }
    for op in &mut program.ops {
        let Task::Action(forward) = op.task else {
            continue;
        };
        let consumer = consumers.get(&of(forward)).copied();
        let Some(consumer) = consumer.filter(|_| forward.kind == ActionKind::Forward) else {
            continue;
        };
        if consumer.kind == ActionKind::Recompute {
            op.hints
                .push((op.local, ActivationHint::Recompute(consumer)));
        }
        let own = (forward.stage, MicroId(forward.micro.index() - first));
        let keep = (op.local, ActivationHint::Keep(consumer));
        if !offloads.is_empty() && !offloads.contains(&own) && !op.hints.contains(&keep) {
            op.hints.push(keep);
        }
    }
}

/// Sets the urgency of each task: the longest chain of tasks that begins with it. Exchanges
/// lengthen the chains of all actions equally, so actions keep their order.
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
                    Task::Exchange { .. } => None,
                };
                op.urgency = chain.unwrap_or_else(|| next.saturating_add(1));
                next = op.urgency;
            }
        }
    }
}
