//! Input of the searches, laid out for millions of accesses.

use super::memory::StageBytes;
use crate::cost::{Costs, StageMemory, StageTimes};
use crate::ids::StageId;
use crate::schedule::{Placement, Shape};
use crate::units::Bytes;

/// A pipeline with its stages on devices, and all times and sizes.
pub(super) struct Pipeline {
    pub(super) stages: Vec<Stage>,
    pub(super) devices: Vec<Device>,
    pub(super) micro_batches: usize,
    /// Number of directed links that values use.
    pub(super) links: usize,
}

/// A stage's times in microseconds, and its memory.
pub(super) struct Stage {
    pub(super) device: usize,
    pub(super) times: StageTimes,
    pub(super) forward: f64,
    pub(super) recompute: f64,
    /// Time of the joint backward; none if its halves in sequence are no worse.
    pub(super) joint: Option<f64>,
    /// Times of the backward's halves; none if the joint backward is no later at the stage before.
    pub(super) halves: Option<[f64; 2]>,
    /// Least time until the input gradient is ready, and least time of the whole backward.
    pub(super) gradient: f64,
    pub(super) backward: f64,
    /// Least time between the ends of the backwards of two consecutive micro-batches.
    pub(super) apart: f64,
    pub(super) bytes: StageBytes,
    /// Transfers to the next stage and to the previous one; none within a device.
    pub(super) onward: Option<Way>,
    pub(super) back: Option<Way>,
}

/// Cost of a transfer from one device to another.
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
    /// Indices of the stages, in increasing order.
    pub(super) stages: Vec<usize>,
    /// Limit of memory.
    pub(super) cap: Option<u64>,
    /// Bytes in use when the step begins.
    pub(super) at_first: u64,
    pub(super) forward: f64,
    pub(super) gradient: f64,
    pub(super) backward: f64,
    /// Time of a gradient from the lowest stage to the end of the first stage's backward.
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

    /// Returns the pipeline without offload of single micro-batches.
    pub(super) fn keeping(mut self, costs: &Costs) -> Self {
        for (stage, own) in self.stages.iter_mut().enumerate() {
            own.bytes = StageBytes::new(StageMemory {
                offloadable: Bytes::ZERO,
                ..costs.memory(StageId(stage))
            });
        }
        self
    }

    /// Returns the transfer time of the stage's value to the next stage, over a free link.
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
    /// Returns the cap with the part beyond the fixed memory multiplied by `times`.
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
