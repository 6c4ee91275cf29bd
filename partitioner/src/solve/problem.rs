//! What is to be cut: layers, devices and the schedule's demands.

use super::memory::{Held, Memory, PLAIN, REDO, Ways};
use super::{RecomputeChoice, Transfer};
use crate::check::CheckedSchedule;
use crate::cost::{Costs, StageTimes};
use crate::ids::{DeviceId, StageId};
use crate::machine::{Device, Machine};
use crate::partition::Partition;
use crate::profile::{LayerCost, Profile};
use crate::schedule::ActionKind;
use crate::units::{Bytes, Micros};

/// Bytes of optimizer state per byte of parameters for `AdamW`: two moments.
pub(crate) const ADAMW_STATE: f64 = 2.0;

/// A stage before it has layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) device: DeviceId,
    /// Micro-batches that it holds at its peak.
    pub(super) held: Held,
    /// Whether its backward runs in halves.
    pub(super) split: bool,
}

/// A chain of layers to be cut for a schedule and a machine.
///
/// # Examples
/// ```
/// use gpipe_partitioner::solve::Problem;
/// use gpipe_partitioner::{LayerProfile, Machine, Micros, Profile, ScheduleKind, Shape, LayerTimes};
///
/// let layer = |us: f64| {
///     let time = Micros::new(us).expect("a time");
///     LayerProfile::new("layer", LayerTimes::new(time, time, time))
/// };
/// let profile = Profile::new("cpu", 8, [1.0, 1.0, 1.0, 3.0, 1.0].map(layer).to_vec())?;
/// let schedule = ScheduleKind::OneFOneB.generate(Shape::new(3, 6))?;
/// let solution = Problem::new(&profile, 8, &Machine::new(3)?, &schedule).solve()?;
/// assert_eq!(solution.partition.balance(), [3, 1, 1]);
/// assert_eq!(solution.bottleneck.get(), 9.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Problem {
    pub(super) costs: Vec<LayerCost>,
    pub(super) input: Bytes,
    pub(super) machine: Machine,
    pub(super) stages: Vec<Slot>,
    pub(super) training: bool,
    pub(super) ways: Ways,
    pub(super) transfer: Transfer,
    recompute: RecomputeChoice,
    state: f64,
}

impl Problem {
    /// The layers of `profile`, with micro-batches of `batch` samples, on `machine` under
    /// `schedule`: its placement, its peaks in flight and the way it runs backwards.
    ///
    /// Transfers are [`Waited`](Transfer::Waited) for unless every stage holds more
    /// micro-batches than there are stages from it to the end (or all that there are).
    /// Recomputation is [`Auto`](RecomputeChoice::Auto), the optimizer `AdamW`.
    ///
    /// # Panics
    /// If the schedule runs on more devices than the machine has.
    pub fn new(
        profile: &Profile,
        batch: usize,
        machine: &Machine,
        schedule: &CheckedSchedule,
    ) -> Self {
        let plan = schedule.schedule();
        assert!(plan.devices() <= machine.devices().len(), "a device short");
        let (split, backward) = backwards(schedule);
        let slot = |stage: usize| Slot {
            device: schedule.device_of(StageId(stage)),
            held: Held {
                in_flight: schedule.peak_in_flight(StageId(stage)) as u64,
                backward: backward[stage],
            },
            split: split[stage],
        };
        let stages: Vec<Slot> = (0..plan.stages()).map(slot).collect();
        let deep = |(stage, slot): (usize, &Slot)| {
            slot.held.in_flight >= plan.micro_batches().min(plan.stages() - stage + 1) as u64
        };
        let overlapped = !schedule.is_training() || stages.iter().enumerate().all(deep);
        let mut costs = profile.costs(batch);
        if !schedule.is_training() {
            costs.iter_mut().for_each(LayerCost::drop_backward);
        }
        Self {
            costs,
            input: profile.input_for(batch),
            machine: machine.clone(),
            stages,
            training: schedule.is_training(),
            ways: ways(schedule),
            transfer: if overlapped {
                Transfer::Overlapped
            } else {
                Transfer::Waited
            },
            recompute: RecomputeChoice::Auto,
            state: ADAMW_STATE,
        }
    }

    /// The same with another rule for recompute.
    #[must_use]
    pub fn with_recompute(mut self, recompute: RecomputeChoice) -> Self {
        self.recompute = recompute;
        self
    }

    /// The same with transfers counted in another way.
    #[must_use]
    pub fn with_transfer(mut self, transfer: Transfer) -> Self {
        self.transfer = transfer;
        self
    }

    /// The same with an optimizer that keeps `state` bytes per byte of parameters: 2 for
    /// `AdamW`, 1 for SGD with momentum, 0 for plain SGD.
    #[must_use]
    pub fn with_optimizer_state(mut self, state: f64) -> Self {
        self.state = state.clamp(0.0, 1e3);
        self
    }

    pub(crate) fn devices(&self) -> &[Device] {
        self.machine.devices()
    }

    /// What the simulator needs to know of a cut: times per stage and per edge.
    ///
    /// A stage that recomputes does so at the start of its backward.
    pub fn stage_costs(&self, partition: &Partition, recompute: &[bool]) -> Costs {
        let stage = |stage: usize| self.times(partition, recompute[stage], stage);
        let mut costs = Costs::new((0..partition.stages()).map(stage).collect());
        if let Some(cores) = self.machine.cores() {
            costs = costs.with_cores(cores);
        }
        let memory = self.memory();
        for (stage, &redo) in recompute.iter().enumerate().take(partition.stages()) {
            let range = partition.range(StageId(stage));
            if stage > 0 {
                let times = self.machine.transfer(self.costs[range.start - 1].output);
                costs = costs.with_edge(StageId(stage - 1), times);
            }
            let parameters = self.costs[range.clone()]
                .iter()
                .map(|c| c.parameters.0)
                .sum();
            let bytes = memory.stage(usize::from(redo), parameters, range);
            costs = costs.with_memory(StageId(stage), bytes);
        }
        costs
    }

    fn times(&self, partition: &Partition, recompute: bool, stage: usize) -> StageTimes {
        let layers = &self.costs[partition.range(StageId(stage))];
        let device = self.stages[stage].device;
        let speed = self.machine.devices()[device.0].speed;
        let sum = |of: fn(&LayerCost) -> Micros| {
            let total: f64 = layers.iter().map(|cost| of(cost).get()).sum();
            Micros::saturating(total / speed)
        };
        let again = sum(|cost| cost.recompute);
        let extra = if recompute { again } else { Micros::ZERO };
        StageTimes {
            forward: sum(|cost| cost.forward),
            backward: sum(|cost| cost.backward) + extra,
            input: sum(|cost| cost.input) + extra,
            weight: sum(|cost| cost.weight),
            recompute: again,
        }
    }

    /// Which modes stages may choose from.
    pub(super) fn modes(&self) -> Vec<usize> {
        match self.recompute {
            _ if !self.training => vec![PLAIN],
            RecomputeChoice::Never => vec![PLAIN],
            RecomputeChoice::Always => vec![REDO],
            RecomputeChoice::Auto => vec![PLAIN, REDO],
        }
    }

    pub(super) fn memory(&self) -> Memory {
        Memory::new(&self.costs, self.input, self.ways, self.state)
    }

    /// Whether the cut behind each stage lies between two devices.
    pub(super) fn crosses(&self) -> Vec<bool> {
        let next = self.stages.iter().skip(1);
        let mut crosses: Vec<bool> = self
            .stages
            .iter()
            .zip(next)
            .map(|(a, b)| a.device != b.device)
            .collect();
        crosses.push(false);
        crosses
    }

    /// At a cut behind a layer: how long one micro-batch's transfers take in all, and how long
    /// they occupy the link in one direction.
    pub(super) fn transfer_at(&self, cost: &LayerCost) -> (Micros, Micros) {
        let times = self.machine.transfer(cost.output);
        let ways = if self.training { 2.0 } else { 1.0 };
        ((times.occupancy + times.latency) * ways, times.occupancy)
    }
}

impl LayerCost {
    fn drop_backward(&mut self) {
        (self.input, self.weight, self.backward, self.recompute) = Default::default();
    }
}

fn ways(schedule: &CheckedSchedule) -> Ways {
    let has = |kind: ActionKind| {
        let mut lists = schedule.schedule().iter();
        lists.any(|(_, actions)| actions.iter().any(|action| action.kind == kind))
    };
    Ways {
        joint: has(ActionKind::Backward),
        halves: has(ActionKind::BackwardInput),
    }
}

/// Which stages run their backward in halves, and how many micro-batches each has between the
/// start and the end of it at its peak.
fn backwards(schedule: &CheckedSchedule) -> (Vec<bool>, Vec<u64>) {
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
                // A joint backward on top of the halves that wait.
                ActionKind::Backward => peak[stage] = (now[stage] + 1).max(peak[stage]),
                ActionKind::Forward | ActionKind::Recompute => {}
            }
        }
    }
    (split, peak)
}
