//! Order of actions by data dependencies and the devices' lists.
//!
//! One walk serves both the check (does everything run?) and the simulation (when does it run?): it
//! visits every action after all actions that it depends on.

use crate::ids::{DeviceId, MicroId, StageId};
use crate::schedule::{Action, ActionKind, Schedule};

/// `owner` of a stage that no device runs.
pub(crate) const NOBODY: u32 = u32::MAX;

/// Bits of the actions done for (stage, micro-batch).
const FORWARD: u8 = 1;
const GRADIENT: u8 = 2;

/// A walk that got stuck: the position of each device (its list's length if done).
#[derive(Debug)]
pub(crate) struct Stuck {
    pub(crate) heads: Vec<usize>,
}

/// Actions of a schedule that are done.
pub(crate) struct Progress<'a> {
    schedule: &'a Schedule,
    done: Vec<u8>,
}

impl<'a> Progress<'a> {
    /// Starts with nothing done.
    pub(crate) fn new(schedule: &'a Schedule) -> Self {
        Self {
            schedule,
            done: vec![0; schedule.stages() * schedule.micro_batches()],
        }
    }

    fn is(&self, stage: usize, micro: usize, bit: u8) -> bool {
        self.done[stage * self.schedule.micro_batches() + micro] & bit != 0
    }

    /// Whether all inputs of `action` are done.
    pub(crate) fn ready(&self, action: Action) -> bool {
        let (s, i) = (action.stage.index(), action.micro.index());
        match action.kind {
            ActionKind::Forward => s == 0 || self.is(s - 1, i, FORWARD),
            ActionKind::Recompute => self.is(s, i, FORWARD),
            ActionKind::Backward | ActionKind::BackwardInput => {
                self.is(s, i, FORWARD)
                    && (s + 1 == self.schedule.stages() || self.is(s + 1, i, GRADIENT))
            }
            ActionKind::BackwardWeight => self.is(s, i, GRADIENT),
        }
    }

    /// Marks `action` as done.
    pub(crate) fn finish(&mut self, action: Action) {
        let bit = match action.kind {
            ActionKind::Forward => FORWARD,
            ActionKind::Backward | ActionKind::BackwardInput => GRADIENT,
            ActionKind::BackwardWeight | ActionKind::Recompute => return,
        };
        let cell = action.stage.index() * self.schedule.micro_batches() + action.micro.index();
        self.done[cell] |= bit;
    }
}

/// Returns the other stage that may go on once `action` is done, if any.
pub(crate) fn unblocks(action: Action, stages: usize) -> Option<usize> {
    let stage = action.stage.index();
    match action.kind {
        ActionKind::Forward => Some(stage + 1).filter(|&next| next < stages),
        ActionKind::Backward | ActionKind::BackwardInput => stage.checked_sub(1),
        ActionKind::BackwardWeight | ActionKind::Recompute => None,
    }
}

/// Visits every action of `schedule` (device, position in its list, action) after all actions that
/// it depends on. All stages and micro-batches must be in range, and `owner` must have the device
/// of each stage.
///
/// # Complexity
/// Linear in the number of actions: a device is visited again only when an action that it may wait
/// for is done.
pub(crate) fn walk(
    schedule: &Schedule,
    owner: &[u32],
    mut visit: impl FnMut(DeviceId, usize, Action),
) -> Result<(), Stuck> {
    let mut progress = Progress::new(schedule);
    let mut heads = vec![0; schedule.devices()];
    // Devices that may be able to go on; the first one is on top.
    let mut queue: Vec<usize> = (0..schedule.devices()).rev().collect();
    let mut queued = vec![true; schedule.devices()];
    while let Some(device) = queue.pop() {
        queued[device] = false;
        let actions = schedule.actions(DeviceId(device));
        while let Some(&action) = actions.get(heads[device]) {
            let partner = schedule.partner(DeviceId(device), heads[device]);
            if !progress.ready(action) || partner.is_some_and(|partner| !progress.ready(partner)) {
                break;
            }
            visit(DeviceId(device), heads[device], action);
            progress.finish(action);
            heads[device] += 1;
            if let Some(stage) = unblocks(action, schedule.stages()) {
                let other = owner[stage] as usize;
                if !queued[other] && other != device {
                    queued[other] = true;
                    queue.push(other);
                }
            }
        }
    }
    let through =
        |(device, &head): (usize, &usize)| head == schedule.actions(DeviceId(device)).len();
    if heads.iter().enumerate().all(through) {
        Ok(())
    } else {
        Err(Stuck { heads })
    }
}

/// Returns the actions that `action` waits for in any schedule. For a gradient from the next stage,
/// both actions that could make it.
pub(crate) fn needs(action: Action, stages: usize) -> Vec<Action> {
    let at = |stage: usize, kind| Action {
        stage: StageId(stage),
        kind,
        micro: MicroId(action.micro.index()),
    };
    let stage = action.stage.index();
    match action.kind {
        ActionKind::Forward if stage == 0 => vec![],
        ActionKind::Forward => vec![at(stage - 1, ActionKind::Forward)],
        ActionKind::Recompute => vec![at(stage, ActionKind::Forward)],
        ActionKind::BackwardWeight => vec![at(stage, ActionKind::BackwardInput)],
        ActionKind::Backward | ActionKind::BackwardInput if stage + 1 == stages => {
            vec![at(stage, ActionKind::Forward)]
        }
        ActionKind::Backward | ActionKind::BackwardInput => vec![
            at(stage, ActionKind::Forward),
            at(stage + 1, ActionKind::Backward),
            at(stage + 1, ActionKind::BackwardInput),
        ],
    }
}
