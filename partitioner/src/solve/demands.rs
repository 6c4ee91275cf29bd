//! Demands of a schedule on the stages: the form of backwards, and the micro-batches held.

use super::memory::Ways;
use crate::check::CheckedSchedule;
use crate::schedule::ActionKind;

/// Returns whether backwards are joint, or in halves.
pub(super) fn ways(schedule: &CheckedSchedule) -> Ways {
    let has = |kind: ActionKind| {
        let mut lists = schedule.schedule().iter();
        lists.any(|(_, actions)| actions.iter().any(|action| action.kind == kind))
    };
    Ways {
        joint: has(ActionKind::Backward),
        halves: has(ActionKind::BackwardInput),
    }
}

/// Returns which stages run their backward in halves, and the peak number of micro-batches between
/// the start and the end of a stage's backward.
pub(super) fn backwards(schedule: &CheckedSchedule) -> (Vec<bool>, Vec<u64>) {
    let stages = schedule.schedule().stages();
    let (mut split, mut now, mut peak) =
        (vec![false; stages], vec![0_u64; stages], vec![1; stages]);
    for (_, actions) in schedule.schedule().iter() {
        for action in actions {
            let stage = action.stage.0;
            match action.kind {
                ActionKind::BackwardInput => {
                    split[stage] = true;
                    now[stage] += 1;
                    peak[stage] = now[stage].max(peak[stage]);
                }
                ActionKind::BackwardWeight => now[stage] -= 1,
                // A joint backward in addition to pending halves.
                ActionKind::Backward => peak[stage] = (now[stage] + 1).max(peak[stage]),
                ActionKind::Forward | ActionKind::Recompute => {}
            }
        }
    }
    (split, peak)
}

/// Returns, for each stage that offloads, the peak number of micro-batches on its device, and
/// whether any leaves.
pub(super) fn offloading(schedule: &CheckedSchedule) -> Vec<(u64, bool)> {
    let plan = schedule.schedule();
    let (mut now, mut peak) = (vec![0_u64; plan.stages()], vec![(0, false); plan.stages()]);
    for (device, actions) in plan.iter() {
        for (action, moves) in actions.iter().zip(plan.offload_moves(device)) {
            let stage = action.stage.0;
            if action.kind == ActionKind::Forward {
                now[stage] += 1;
            }
            if let Some((coming, _)) = moves.prefetched {
                now[coming.0] += 1;
                peak[coming.0].0 = peak[coming.0].0.max(now[coming.0]);
            }
            peak[stage].0 = peak[stage].0.max(now[stage]);
            if matches!(
                action.kind,
                ActionKind::Backward | ActionKind::BackwardWeight
            ) {
                now[stage] -= 1;
            }
            if let Some((leaving, _)) = moves.released {
                now[leaving.0] -= 1;
                peak[leaving.0].1 = true;
            }
        }
    }
    peak
}
