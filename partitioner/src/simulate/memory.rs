//! Memory of a device over time.

use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::{DeviceId, StageId};
use crate::schedule::{Action, ActionKind, OffloadMove, Schedule};
use crate::timeline::Span;
use crate::units::{Bytes, Micros};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Memory in use on a device from a point in time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLevel {
    /// Time at which the level begins.
    pub time: Micros,
    /// Bytes in use from then on.
    pub bytes: Bytes,
}

/// Change of memory by an action.
pub(crate) struct Change {
    /// Bytes taken at its start.
    pub(crate) takes: Bytes,
    /// Bytes released at its end.
    pub(crate) gives: Bytes,
}

/// Returns the levels of `device`, given the spans of each device by start.
pub(super) fn levels<'a>(
    schedule: &CheckedSchedule,
    costs: &Costs,
    spans: &impl Fn(DeviceId) -> Cow<'a, [Span]>,
    device: DeviceId,
) -> Vec<MemoryLevel> {
    let mut gradients = Gradients::new(schedule.schedule().stages());
    let stages = schedule.stages_on(device).into_iter();
    let mut bytes: Bytes = stages.map(|stage| at_first(costs, stage)).sum();
    let mut levels = vec![MemoryLevel {
        time: Micros::ZERO,
        bytes,
    }];
    let recomputed = recomputed(schedule.schedule(), device);
    let mut set = |time, bytes| match levels.last_mut() {
        Some(last) if last.bytes == bytes => {}
        _ => levels.push(MemoryLevel { time, bytes }),
    };
    let mut taken = taken(schedule, costs, spans, device).into_iter().peekable();
    let moves = OffloadMoves::new(schedule, costs, device);
    for span in spans(device).iter() {
        while let Some((time, gone)) = taken.next_if(|&(time, _)| time < span.start) {
            bytes = bytes - gone;
            set(time, bytes);
        }
        let apart = recomputed.contains(&span.action.with(ActionKind::Recompute));
        let change = change(costs, span.action, apart, schedule.is_training());
        let working = costs.memory(span.action.stage).working;
        let (prefetched, released) = moves.of(span.action);
        bytes += change.takes + prefetched;
        set(span.start, bytes + working);
        while let Some((time, gone)) = taken.next_if(|&(time, _)| time < span.end) {
            bytes = bytes - gone;
            set(time, bytes + working);
        }
        bytes = bytes - change.gives - released + sent(costs, span.action);
        bytes += gradients.made(costs, span.action);
        set(span.end, bytes);
    }
    for (time, gone) in taken {
        bytes = bytes - gone;
        set(time, bytes);
    }
    levels
}

/// Bytes that `action` leaves for the previous stage.
fn sent(costs: &Costs, action: Action) -> Bytes {
    match action.kind {
        ActionKind::Backward | ActionKind::BackwardInput if action.stage.index() > 0 => {
            costs.memory(action.stage).sent
        }
        _ => Bytes::ZERO,
    }
}

/// Returns when stages take the gradients that `device` sent them, in order, with their bytes.
fn taken<'a>(
    schedule: &CheckedSchedule,
    costs: &Costs,
    spans: &impl Fn(DeviceId) -> Cow<'a, [Span]>,
    device: DeviceId,
) -> Vec<(Micros, Bytes)> {
    let mut taken = Vec::new();
    for stage in schedule.stages_on(device) {
        let bytes = costs.memory(stage).sent;
        let Some(before) = stage.index().checked_sub(1).map(StageId) else {
            continue;
        };
        if bytes == Bytes::ZERO {
            continue;
        }
        let takes = |span: &&Span| {
            let backward = matches!(
                span.action.kind,
                ActionKind::Backward | ActionKind::BackwardInput
            );
            backward && span.action.stage == before
        };
        let spans = spans(schedule.device_of(before));
        taken.extend(spans.iter().filter(takes).map(|span| (span.start, bytes)));
    }
    taken.sort_by_key(|&(time, _)| time);
    taken
}

/// Returns the peak of each stage by itself, without gradients waiting for another stage.
pub(super) fn stage_peaks(schedule: &CheckedSchedule, costs: &Costs) -> Vec<Bytes> {
    let plan = schedule.schedule();
    let mut gradients = Gradients::new(plan.stages());
    let first = (0..plan.stages()).map(|stage| at_first(costs, StageId(stage)));
    let mut levels: Vec<Bytes> = first.collect();
    let mut peaks = levels.clone();
    for (device, actions) in plan.iter() {
        let recomputed = recomputed(plan, device);
        let moves = OffloadMoves::new(schedule, costs, device);
        for &action in actions {
            let apart = recomputed.contains(&action.with(ActionKind::Recompute));
            let change = change(costs, action, apart, schedule.is_training());
            let stage = action.stage.index();
            let working = costs.memory(action.stage).working;
            let OffloadMove {
                prefetched,
                released,
            } = moves.by_action(action);
            if let Some((coming, _)) = prefetched {
                let coming = coming.index();
                levels[coming] += costs.offloaded_under(plan, StageId(coming));
                peaks[coming] = peaks[coming].max(levels[coming]);
            }
            levels[stage] += change.takes;
            peaks[stage] = peaks[stage].max(levels[stage] + working);
            levels[stage] = levels[stage] - change.gives + gradients.made(costs, action);
            if let Some((released, _)) = released {
                let offloaded = costs.offloaded_under(plan, released);
                levels[released.index()] = levels[released.index()] - offloaded;
            }
            peaks[stage] = peaks[stage].max(levels[stage]);
        }
    }
    peaks
}

/// Transfers between a device and the host's memory, by action.
struct OffloadMoves<'a> {
    schedule: &'a Schedule,
    costs: &'a Costs,
    moves: HashMap<Action, OffloadMove>,
}

impl<'a> OffloadMoves<'a> {
    fn new(schedule: &'a CheckedSchedule, costs: &'a Costs, device: DeviceId) -> Self {
        let (plan, stages) = (schedule.schedule(), schedule.stages_on(device).into_iter());
        let mut offloaded = stages.map(|stage| costs.offloaded_under(plan, stage));
        let moves = if schedule.is_training() && offloaded.any(|bytes| bytes != Bytes::ZERO) {
            let list = plan.actions(device).iter().copied();
            list.zip(plan.offload_moves(device)).collect()
        } else {
            HashMap::new()
        };
        Self {
            schedule: plan,
            costs,
            moves,
        }
    }

    fn by_action(&self, action: Action) -> OffloadMove {
        self.moves.get(&action).copied().unwrap_or_default()
    }

    /// Returns the bytes prefetched while the action runs, and those released at its end.
    fn of(&self, action: Action) -> (Bytes, Bytes) {
        let bytes = |of: Option<(StageId, _)>| {
            of.map_or(Bytes::ZERO, |(stage, _)| {
                self.costs.offloaded_under(self.schedule, stage)
            })
        };
        let OffloadMove {
            prefetched,
            released,
        } = self.by_action(action);
        (bytes(prefetched), bytes(released))
    }
}

/// Bytes of a stage when a step begins.
fn at_first(costs: &Costs, stage: StageId) -> Bytes {
    let memory = costs.memory(stage);
    memory.parameters + memory.optimizer + memory.graphs
}

/// Records which stages already have gradients of their parameters.
struct Gradients(Vec<bool>);

impl Gradients {
    fn new(stages: usize) -> Self {
        Self(vec![false; stages])
    }

    /// Returns the bytes of gradients that exist for the first time after `action`.
    fn made(&mut self, costs: &Costs, action: Action) -> Bytes {
        let makes = matches!(
            action.kind,
            ActionKind::Backward | ActionKind::BackwardWeight
        );
        let there = self.0.get_mut(action.stage.index()).filter(|_| makes);
        match there.map(|there| std::mem::replace(there, true)) {
            Some(false) => costs.memory(action.stage).gradients,
            _ => Bytes::ZERO,
        }
    }
}

/// Returns the separate recomputes of `device`.
fn recomputed(schedule: &Schedule, device: DeviceId) -> HashSet<Action> {
    let actions = schedule.actions(device).iter().copied();
    actions
        .filter(|action| action.kind == ActionKind::Recompute)
        .collect()
}

/// Returns the bytes that `action` takes and releases; `apart` means that its micro-batch has a
/// separate recompute.
pub(crate) fn change(costs: &Costs, action: Action, apart: bool, training: bool) -> Change {
    let memory = costs.memory(action.stage);
    let rebuilt = if apart {
        Bytes::ZERO
    } else {
        memory.recomputed
    };
    let dropped = if apart {
        memory.recomputable
    } else {
        Bytes::ZERO
    };
    let all = memory.activation + memory.recomputed;
    let (takes, gives) = match action.kind {
        ActionKind::Forward if !training => (memory.activation, memory.activation),
        ActionKind::Forward => (memory.activation - dropped, Bytes::ZERO),
        ActionKind::Recompute => (memory.recomputed + dropped, Bytes::ZERO),
        ActionKind::Backward => (rebuilt, all),
        // I may capture more for W than it frees.
        ActionKind::BackwardInput => (
            rebuilt + (memory.after_input() - all),
            all - memory.after_input(),
        ),
        ActionKind::BackwardWeight => (Bytes::ZERO, memory.after_input()),
    };
    Change { takes, gives }
}
