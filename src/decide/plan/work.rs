//! How long devices and layers compute in a plan's step, by the costs that it was
//! simulated with: its schedule says which layers run their backward in halves.

use gpipe_partitioner::profile::LayerCost;
use gpipe_partitioner::{ActionKind, Machine, Plan, Profile, StageId};

/// Microseconds for one micro-batch.
#[derive(Debug)]
pub(super) struct Work {
    /// Of each device, all its stages together.
    pub(super) devices: Vec<f64>,
    /// Of each layer, on the fastest device.
    pub(super) layers: Vec<f64>,
    /// What each device would have if work could be divided at will: less on slow ones.
    pub(super) even: f64,
}

impl Work {
    /// None where the plan's schedule does not exist, which is so of no plan made here.
    pub(super) fn of(profile: &Profile, plan: &Plan, machine: &Machine) -> Option<Self> {
        let schedule = plan.generate().ok()?;
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
        Some(work)
    }

    /// The busiest device.
    pub(super) fn busiest(&self) -> usize {
        let devices = 0..self.devices.len();
        // Of equals the first.
        let busiest = devices.rev().max_by(|&a, &b| {
            let time = |device: usize| self.devices[device];
            time(a).total_cmp(&time(b))
        });
        busiest.unwrap_or(0)
    }

    /// The mean of the devices.
    pub(super) fn mean(&self) -> f64 {
        self.devices.iter().sum::<f64>() / self.devices.len() as f64
    }

    /// The share of the step that devices idle at least: a step takes no less than its
    /// busiest device computes.
    pub(super) fn idle(&self) -> f64 {
        let most = self.devices[self.busiest()];
        if most > 0.0 {
            1.0 - self.mean() / most
        } else {
            0.0
        }
    }
}

/// A stage that recomputes does so at the start of its backward.
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
