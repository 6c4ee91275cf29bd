//! Computing times of devices and layers in a plan's step, by the costs that it was simulated with:
//! the schedule determines which layers run their backward in halves.

use gpipe_partitioner::profile::LayerCost;
use gpipe_partitioner::{ActionKind, CheckedSchedule, Machine, Plan, Profile, StageId};

/// Computing times for one micro-batch, in microseconds.
#[derive(Debug)]
pub(super) struct Work {
    /// By device, over all its stages.
    pub(super) devices: Vec<f64>,
    /// By layer, on the fastest device.
    pub(super) layers: Vec<f64>,
    /// Time of each device if work could be divided at will: less on slow devices.
    pub(super) even: f64,
}

impl Work {
    pub(super) fn of(
        profile: &Profile,
        plan: &Plan,
        machine: &Machine,
        schedule: &CheckedSchedule,
    ) -> Self {
        let mut counts = vec![[0_usize; ActionKind::ALL.len()]; plan.placement.len()];
        for (_, actions) in schedule.schedule().iter() {
            for action in actions {
                counts[action.stage.index()][action.kind as usize] += 1;
            }
        }
        let costs = profile.costs(plan.micro_batch_size);
        let speed = |device: usize| machine.devices().get(device).map_or(1.0, |own| own.speed);
        let speeds = || (0..plan.devices()).map(speed);
        let fastest = speeds().fold(f64::MIN_POSITIVE, f64::max);
        let mut work = Self {
            devices: vec![0.0; plan.devices()],
            layers: Vec::with_capacity(costs.len()),
            even: 0.0,
        };
        for (stage, device) in plan.placement.iter().enumerate() {
            let redo = plan.recompute.get(stage) == Some(&true);
            for layer in plan.partition.range(StageId(stage)) {
                let of_kind = |kind: ActionKind| {
                    let times =
                        counts[stage][kind as usize] as f64 / plan.micro_batches_each() as f64;
                    times * time(&costs[layer], kind, redo)
                };
                let time = ActionKind::ALL.into_iter().map(of_kind).sum::<f64>();
                work.layers.push(time / fastest);
                work.devices[device.index()] += time / speed(device.index());
                work.even += time;
            }
        }
        work.even /= speeds().sum::<f64>();
        work
    }

    /// Index of the busiest device.
    pub(super) fn busiest(&self) -> usize {
        let devices = 0..self.devices.len();
        // The first among equals.
        let busiest = devices.rev().max_by(|&a, &b| {
            let time = |device: usize| self.devices[device];
            time(a).total_cmp(&time(b))
        });
        busiest.unwrap_or(0)
    }

    /// Mean over the devices.
    pub(super) fn mean(&self) -> f64 {
        self.devices.iter().sum::<f64>() / self.devices.len() as f64
    }

    /// Least share of the step that devices idle: a step takes at least as long as its busiest
    /// device computes.
    pub(super) fn idle(&self) -> f64 {
        let most = self.devices[self.busiest()];
        if most > 0.0 {
            1.0 - self.mean() / most
        } else {
            0.0
        }
    }
}

/// Time of an action; a stage that recomputes does so at the start of its backward.
fn time(cost: &LayerCost, kind: ActionKind, redo: bool) -> f64 {
    let again = if redo { cost.recompute.get() } else { 0.0 };
    match kind {
        ActionKind::Forward => cost.forward.get(),
        ActionKind::Backward => cost.backward.get() + again,
        ActionKind::BackwardInput => cost.input.get() + again,
        ActionKind::BackwardWeight => cost.weight.get(),
        ActionKind::Recompute => cost.recompute.get(),
    }
}
