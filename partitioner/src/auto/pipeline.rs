//! What a schedule is computed for, laid out for a search that asks for it millions of times.

use super::memory::StageBytes;
use crate::cost::{Costs, StageMemory, StageTimes};
use crate::ids::StageId;
use crate::schedule::{Placement, Shape};
use crate::units::Bytes;

/// A pipeline whose stages lie on devices, with what everything takes.
pub(super) struct Pipeline {
    pub(super) stages: Vec<Stage>,
    pub(super) devices: Vec<Device>,
    pub(super) micro_batches: usize,
    /// How many directed links values take.
    pub(super) links: usize,
}

/// A stage's times in microseconds, and its memory.
pub(super) struct Stage {
    pub(super) device: usize,
    pub(super) times: StageTimes,
    pub(super) forward: f64,
    pub(super) recompute: f64,
    /// The backward whole; none where its halves one after the other are no worse.
    pub(super) joint: Option<f64>,
    /// The backward's halves; none where the whole is no later at the stage before.
    pub(super) halves: Option<[f64; 2]>,
    /// The least until the gradient of the inputs is there, and the least backward in all.
    pub(super) gradient: f64,
    pub(super) backward: f64,
    /// The least from one micro-batch's end of its backward to the next one's.
    pub(super) apart: f64,
    pub(super) bytes: StageBytes,
    /// To the stage behind, and to the one before; none within a device.
    pub(super) onward: Option<Way>,
    pub(super) back: Option<Way>,
}

/// What a value takes from one device to another.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) link: usize,
    pub(super) occupancy: f64,
    pub(super) latency: f64,
}

impl Way {
    pub(super) fn alone(self) -> f64 {
        self.occupancy + self.latency
    }
}

/// A device, and the sums over its stages.
pub(super) struct Device {
    /// In increasing order.
    pub(super) stages: Vec<usize>,
    /// What memory may reach.
    pub(super) cap: Option<u64>,
    /// What is there when the step begins.
    pub(super) at_first: u64,
    pub(super) forward: f64,
    pub(super) gradient: f64,
    pub(super) backward: f64,
    /// The way of a gradient from the lowest stage to the end of the first stage's backward.
    pub(super) tail: f64,
}

impl Pipeline {
    pub(super) fn new(
        shape: Shape,
        placement: Placement,
        costs: &Costs,
        caps: &[Option<Bytes>],
    ) -> Self {
        let owner: Vec<usize> = (placement.devices(shape).iter().map(|d| d.index())).collect();
        let mut links: Vec<(usize, usize)> = Vec::new();
        let mut way = |from: usize, to: usize| {
            let ends = (owner[from], owner[to]);
            if ends.0 == ends.1 {
                return None;
            }
            let known = links.iter().position(|own| *own == ends);
            let link = known.unwrap_or_else(|| {
                links.push(ends);
                links.len() - 1
            });
            let edge = costs.edge(StageId(from.min(to)));
            Some(Way {
                link,
                occupancy: edge.occupancy.get(),
                latency: edge.latency.get(),
            })
        };
        let last = shape.stages() - 1;
        let mut stages: Vec<Stage> = Vec::with_capacity(shape.stages());
        for (stage, &own) in owner.iter().enumerate() {
            stages.push(Stage {
                onward: if stage < last {
                    way(stage, stage + 1)
                } else {
                    None
                },
                back: stage.checked_sub(1).and_then(|before| way(stage, before)),
                ..Stage::new(costs, stage, own)
            });
        }
        let device = |device| Device::new(device, &stages, caps, costs);
        Self {
            devices: (0..shape.devices).map(device).collect(),
            micro_batches: shape.micro_batches,
            links: links.len(),
            stages,
        }
    }

    /// The same where no single micro-batch may be offloaded.
    pub(super) fn keeping(mut self, costs: &Costs) -> Self {
        for (stage, own) in self.stages.iter_mut().enumerate() {
            own.bytes = StageBytes::new(StageMemory {
                offloadable: Bytes::ZERO,
                ..costs.memory(StageId(stage))
            });
        }
        self
    }

    /// The stage's value takes so long to the stage behind, over a free link.
    pub(super) fn onward(&self, stage: usize) -> f64 {
        self.stages[stage].onward.map_or(0.0, Way::alone)
    }
}

impl Stage {
    fn new(costs: &Costs, stage: usize, device: usize) -> Self {
        let times = costs.stage(StageId(stage));
        let bytes = StageBytes::new(costs.memory(StageId(stage)));
        let [joint, input, weight] =
            [times.backward, times.input, times.weight].map(|time| time.get());
        let halves_are_no_worse = joint >= input + weight && bytes.halves_hold_no_more();
        Self {
            device,
            times,
            forward: times.forward.get(),
            recompute: times.recompute.get(),
            joint: (!halves_are_no_worse).then_some(joint),
            halves: (halves_are_no_worse || input < joint).then_some([input, weight]),
            gradient: joint.min(input),
            backward: joint.min(input + weight),
            apart: joint.min(weight),
            bytes,
            onward: None,
            back: None,
        }
    }
}

impl Device {
    /// So many times as much memory beside what is there all the time.
    pub(super) fn more(&self, cap: u64, times: f64) -> Bytes {
        let room = cap.saturating_sub(self.at_first) as f64;
        Bytes(self.at_first.saturating_add((room * times) as u64))
    }

    fn new(device: usize, stages: &[Stage], caps: &[Option<Bytes>], costs: &Costs) -> Self {
        let own: Vec<usize> = (0..stages.len())
            .filter(|&stage| stages[stage].device == device)
            .collect();
        let sum = |of: fn(&Stage) -> f64| own.iter().map(|&stage| of(&stages[stage])).sum();
        let at_first = |&stage: &usize| {
            let memory = costs.memory(StageId(stage));
            (memory.parameters + memory.optimizer + memory.graphs).get()
        };
        let lowest = own.first().copied().unwrap_or(0);
        let tail = |stage: usize| {
            let behind = if stage == 0 {
                stages[stage].backward
            } else {
                stages[stage].gradient
            };
            behind + stages[stage].onward.map_or(0.0, Way::alone)
        };
        Self {
            cap: caps.get(device).copied().flatten().map(Bytes::get),
            at_first: own.iter().map(at_first).sum(),
            forward: sum(|stage| stage.forward),
            gradient: sum(|stage| stage.gradient),
            backward: sum(|stage| stage.backward),
            tail: (0..lowest).map(tail).sum(),
            stages: own,
        }
    }
}
