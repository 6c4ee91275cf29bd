//! Any legal schedule: picks among the ready actions.

use std::collections::HashSet;

use gpipe::partitioner::{Action, ActionKind, CheckedSchedule, Schedule};

/// Runs ready actions, chosen by `choices`, each on its stage's device, until all have run. Flagged stages
/// split their backwards.
pub(crate) fn random(
    (devices, stages): (usize, usize),
    micro_batches: usize,
    choices: &[usize],
    halves: &[bool],
) -> CheckedSchedule {
    let split = |stage: usize| halves.get(stage).copied().unwrap_or(false);
    let all: Vec<Action> = (0..stages)
        .flat_map(|stage| {
            let kinds: &[ActionKind] = if split(stage) {
                &[
                    ActionKind::Forward,
                    ActionKind::BackwardInput,
                    ActionKind::BackwardWeight,
                ]
            } else {
                &[ActionKind::Forward, ActionKind::Backward]
            };
            let micros = 0..micro_batches;
            micros.flat_map(move |m| kinds.iter().map(move |kind| Action::new(stage, *kind, m)))
        })
        .collect();
    let mut done = HashSet::new();
    let mut lists = vec![Vec::new(); devices];
    for turn in 0..all.len() {
        let ready = |action: &&Action| !done.contains(*action) && needs(**action, stages, &done);
        let ready: Vec<_> = all.iter().filter(ready).copied().collect();
        let choice = choices.get(turn % choices.len().max(1)).copied();
        let action = ready[choice.unwrap_or(0) % ready.len()];
        lists[action.stage.index() % devices].push(action);
        done.insert(action);
    }
    let schedule = Schedule::new("random", stages, micro_batches, lists);
    schedule.check().unwrap()
}

/// Whether all dependencies of an action are done.
fn needs(action: Action, stages: usize, done: &HashSet<Action>) -> bool {
    let (stage, micro) = (action.stage.index(), action.micro.index());
    let ran = |stage: usize, kind| done.contains(&Action::new(stage, kind, micro));
    match action.kind {
        // In the order of the micro-batches, in which buffers are updated.
        ActionKind::Forward => {
            let before = micro
                .checked_sub(1)
                .map(|m| Action::new(stage, ActionKind::Forward, m));
            let first = before.is_none_or(|before| done.contains(&before));
            first && (stage == 0 || ran(stage - 1, ActionKind::Forward))
        }
        ActionKind::BackwardWeight => ran(stage, ActionKind::BackwardInput),
        _ => {
            let next = stage + 1;
            let gradient = next == stages
                || ran(next, ActionKind::Backward)
                || ran(next, ActionKind::BackwardInput);
            ran(stage, ActionKind::Forward) && gradient
        }
    }
}
