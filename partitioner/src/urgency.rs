//! Priorities of devices that share too few cores.

use crate::check::CheckedSchedule;
use crate::ids::DeviceId;
use crate::schedule::{Action, ActionKind};
use crate::walk::walk;

/// Returns the urgency of each action of a schedule, by device and index in the device's list: the
/// length of the longest chain of dependent actions that begins with it, where a forward takes one
/// unit, a joint backward two, and everything else one.
///
/// If more devices could run than there are cores, those with the most urgent next action go first,
/// among equals the device with the lower number: list scheduling by critical path, whose makespan
/// is at most (2 − 1/c) times the best one on c cores (Graham, Bounds on multiprocessing timing
/// anomalies, 1969). It depends on the schedule only, so an engine and a simulation agree.
///
/// # Complexity
/// Linear in the number of actions.
///
/// # Examples
/// ```
/// use gpipe_partitioner::{ScheduleKind, Shape, urgencies};
///
/// let schedule = ScheduleKind::OneFOneB.generate(Shape::new(2, 2))?;
/// // F0 F1 B0 B1 on the first device, F0 B0 F1 B1 on the second.
/// assert_eq!(urgencies(&schedule), [[9, 6, 4, 2], [8, 7, 5, 4]]);
/// # Ok::<(), gpipe_partitioner::Error>(())
/// ```
pub fn urgencies(schedule: &CheckedSchedule) -> Vec<Vec<u32>> {
    let plan = schedule.schedule();
    // Only the devices: each runs its list in order, and large schedules have millions of actions.
    let mut order: Vec<u32> = Vec::new();
    // Cannot fail: a checked schedule was already walked to its end, and the owners of its stages,
    // which are the devices with actions, are u32.
    let _ = walk(plan, schedule.owner(), |device, _, _| {
        order.push(u32::try_from(device.index()).unwrap_or(u32::MAX));
    });
    let lengths = plan.iter().map(|(_, list)| vec![0; list.len()]);
    let mut urgencies: Vec<Vec<u32>> = lengths.collect();
    let mut left: Vec<usize> = urgencies.iter().map(Vec::len).collect();
    let mut chains = Chains::new(plan.stages(), plan.micro_batches());
    for device in order.into_iter().rev().map(|device| device as usize) {
        left[device] -= 1;
        let position = left[device];
        let action = plan.actions(DeviceId(device))[position];
        let own = &mut urgencies[device];
        let next = own.get(position + 1).copied().unwrap_or(0);
        let longest = next.max(chains.after(action));
        own[position] = longest.saturating_add(units(action.kind));
        chains.put(action, own[position]);
    }
    urgencies
}

fn units(kind: ActionKind) -> u32 {
    match kind {
        ActionKind::Backward => 2,
        ActionKind::Forward
        | ActionKind::BackwardInput
        | ActionKind::BackwardWeight
        | ActionKind::Recompute => 1,
    }
}

/// Chains that begin with outputs which other devices wait for, by stage and micro-batch.
struct Chains {
    stages: usize,
    micros: usize,
    forward: Vec<u32>,
    gradient: Vec<u32>,
}

impl Chains {
    fn new(stages: usize, micros: usize) -> Self {
        let none = vec![0; stages * micros];
        Self {
            stages,
            micros,
            forward: none.clone(),
            gradient: none,
        }
    }

    fn put(&mut self, action: Action, chain: u32) {
        let place = action.stage.index() * self.micros + action.micro.index();
        match action.kind {
            ActionKind::Forward => self.forward[place] = chain,
            ActionKind::Backward | ActionKind::BackwardInput => self.gradient[place] = chain,
            ActionKind::BackwardWeight | ActionKind::Recompute => {}
        }
    }

    /// Returns the chain of another stage's use of the result of `action`. The stage's own use
    /// comes later in the same list.
    fn after(&self, action: Action) -> u32 {
        let (stage, micro) = (action.stage.index(), action.micro.index());
        let there = match action.kind {
            ActionKind::Forward => Some(stage + 1).filter(|next| *next < self.stages),
            ActionKind::Backward | ActionKind::BackwardInput => stage.checked_sub(1),
            ActionKind::BackwardWeight | ActionKind::Recompute => None,
        };
        let chains = match action.kind {
            ActionKind::Forward => &self.forward,
            _ => &self.gradient,
        };
        there.map_or(0, |stage| chains[stage * self.micros + micro])
    }
}
