//! What is to be cut: layers, devices and the schedule's demands.

use super::memory::{AWAY, Held, Memory, PLAIN, REDO, Ways};
use super::{Transfer, When};
use crate::check::CheckedSchedule;
use crate::cost::{Costs, StageMemory, StageTimes};
use crate::ids::{DeviceId, StageId};
use crate::machine::{Device, Machine, Neighbours, Nodes, VOTES, Way};
use crate::partition::Partition;
use crate::profile::{LayerCost, Profile};
use crate::schedule::ActionKind;
use crate::tree::gradient_sets;
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
    /// Whether any of its micro-batches would leave if it offloads.
    pub(super) leaves: bool,
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
    recompute: When,
    offload: When,
    /// What the host takes for an action in a CUDA graph, where there are to be some.
    replay: Option<Micros>,
    state: f64,
    micro_batches: usize,
    /// Sets of gradients that a stage has at a time.
    pub(super) sets: u64,
}

impl Problem {
    /// The layers of `profile`, with micro-batches of `batch` samples, on `machine` under
    /// `schedule`: its placement, its peaks in flight and the way it runs backwards.
    ///
    /// Transfers are [`Waited`](Transfer::Waited) for unless every stage holds more
    /// micro-batches than there are stages from it to the end (or all that there are).
    /// Recomputation is [`Auto`](When::Auto), the optimizer `AdamW`; nothing is
    /// offloaded, and there are no CUDA graphs.
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
        let offloading = offloading(schedule);
        let slot = |stage: usize| Slot {
            device: schedule.device_of(StageId(stage)),
            held: Held {
                in_flight: schedule.peak_in_flight(StageId(stage)) as u64,
                backward: backward[stage],
                offloading: offloading[stage].0,
            },
            split: split[stage],
            leaves: offloading[stage].1,
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
            recompute: When::Auto,
            offload: When::Never,
            replay: None,
            state: ADAMW_STATE,
            micro_batches: plan.micro_batches(),
            sets: 1,
        }
    }

    /// The same with another rule for the offload of activations, where the machine has a link
    /// to the host's memory.
    #[must_use]
    pub fn with_offload(mut self, offload: When) -> Self {
        if self.training && self.machine.host_link().is_some() {
            self.offload = offload;
        }
        self
    }

    /// The same with CUDA graphs on all stages that can have them: of layers that can be
    /// captured, neither recomputing nor offloading. The host takes `replay` for an action then.
    #[must_use]
    pub fn with_graphs(mut self, replay: Option<Micros>) -> Self {
        self.replay = replay.filter(|_| self.training);
        self
    }

    /// The same with another rule for recompute.
    #[must_use]
    pub fn with_recompute(mut self, recompute: When) -> Self {
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

    /// The same with gradients that are summed in a tree of so many leaves. Their share of the
    /// memory is that of all [sets](gradient_sets) that there are at a time, from a stage's first
    /// gradients on: more than there is until the last leaf. Replicas share the leaves.
    #[must_use]
    pub fn with_tree(mut self, leaves: usize) -> Self {
        let own = (leaves / self.machine.replicas()).max(1);
        self.sets = gradient_sets(own, self.micro_batches);
        self
    }

    pub(crate) fn devices(&self) -> &[Device] {
        self.machine.devices()
    }

    pub(crate) fn neighbours(&self) -> Neighbours {
        self.machine.neighbours()
    }

    pub(crate) fn nodes(&self) -> Option<&Nodes> {
        self.machine.nodes()
    }

    /// What the simulator needs to know of a cut, and of which stages recompute and offload:
    /// times per stage and per edge, memory, hosts and offload.
    ///
    /// A stage that recomputes does so at the start of its backward.
    pub fn stage_costs(
        &self,
        partition: &Partition,
        recompute: &[bool],
        offload: &[bool],
    ) -> Costs {
        let stage = |stage: usize| self.times(partition, recompute[stage], stage);
        let mut costs = Costs::new((0..partition.stages()).map(stage).collect());
        if let Some(cores) = self.machine.cores() {
            costs = costs.with_cores(cores);
        }
        if let Some(cards) = self.machine.cards() {
            costs = costs.with_cards(cards);
        }
        if let Some(joins) = self.machine.joins(VOTES) {
            costs = costs.with_joins(joins);
        }
        let memory = self.memory();
        for (stage, &redo) in recompute.iter().enumerate().take(partition.stages()) {
            let range = partition.range(StageId(stage));
            let device = self.stages[stage].device;
            if stage > 0 {
                let (before, output) = (self.stages[stage - 1].device, range.start - 1);
                let output = self.costs[output].output;
                let times = self.machine.transfer(before, device, output);
                costs = costs.with_edge(StageId(stage - 1), times);
            }
            let away = offload.get(stage) == Some(&true);
            let graphs = self.captures(range.clone(), redo || away);
            let mode = if redo { REDO } else { PLAIN } | if away { AWAY } else { PLAIN };
            let bytes = if graphs {
                memory.stage_in_graphs(self.stages[stage].held, range.clone())
            } else {
                memory.stage(mode, range.clone())
            };
            if self.training && self.machine.replicas() > 1 {
                let times = self.machine.exchange(device, bytes.gradients);
                costs = costs.with_exchange(StageId(stage), times);
            }
            costs = self.with_host(costs, StageId(stage), (range, redo, graphs));
            costs = self.with_way(costs, StageId(stage), partition, bytes);
        }
        costs
    }

    /// Whether a stage of these layers has CUDA graphs.
    fn captures(&self, range: std::ops::Range<usize>, moves: bool) -> bool {
        let all = || self.costs[range].iter().all(|cost| cost.captures);
        self.replay.is_some() && !moves && all()
    }

    /// What the host does, where it is known.
    fn with_host(
        &self,
        costs: Costs,
        stage: StageId,
        (range, redo, graphs): (std::ops::Range<usize>, bool, bool),
    ) -> Costs {
        let layers = &self.costs[range];
        if layers.iter().all(|cost| cost.host == StageTimes::default()) {
            return costs;
        }
        let sum = |of: fn(&StageTimes) -> Micros| {
            let replay = self.replay.filter(|_| graphs);
            replay.unwrap_or_else(|| layers.iter().map(|cost| of(&cost.host)).sum())
        };
        let again = sum(|host| host.recompute);
        let extra = if redo { again } else { Micros::ZERO };
        let times = StageTimes {
            forward: sum(|host| host.forward),
            backward: sum(|host| host.backward) + extra,
            input: sum(|host| host.input) + extra,
            weight: sum(|host| host.weight),
            recompute: again,
        };
        costs.with_host(stage, times)
    }

    /// Memory, and the way of what is offloaded.
    fn with_way(
        &self,
        costs: Costs,
        stage: StageId,
        partition: &Partition,
        memory: StageMemory,
    ) -> Costs {
        let costs = costs.with_memory(stage, memory);
        match self.machine.host_link() {
            Some(link) if memory.offloaded > Bytes::ZERO => {
                // What a stage recomputes from is there at once.
                let whole = memory.recomputed > Bytes::ZERO;
                let layers = partition.range(stage).len();
                let pieces = if whole { 1 } else { layers as u32 };
                costs.with_offload(stage, link.transfer(memory.offloaded, pieces))
            }
            _ => costs,
        }
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

    /// What stages may do: whether they recompute, and whether they offload.
    pub(crate) fn ways(&self) -> Vec<(bool, bool)> {
        let modes = self.modes().into_iter();
        modes
            .map(|mode| (mode & REDO != 0, mode & AWAY != 0))
            .collect()
    }

    #[cfg(test)]
    pub(super) fn with_graphs_on(&self) -> bool {
        self.replay.is_some()
    }

    /// Which modes stages may choose from, what costs less time first.
    pub(super) fn modes(&self) -> Vec<usize> {
        let redo: &[usize] = match self.recompute {
            _ if !self.training => &[PLAIN],
            When::Never => &[PLAIN],
            When::Always => &[REDO],
            When::Auto => &[PLAIN, REDO],
        };
        let away: &[usize] = match self.offload {
            When::Never => &[PLAIN],
            When::Always => &[AWAY],
            When::Auto => &[PLAIN, AWAY],
        };
        let both = redo
            .iter()
            .flat_map(|redo| away.iter().map(move |away| redo | away));
        both.collect()
    }

    pub(super) fn memory(&self) -> Memory {
        let graphs = self.replay.is_some();
        let throughout = (self.state, self.sets, graphs);
        Memory::new(&self.costs, self.input, self.ways, throughout)
    }

    /// What the host takes to submit a layer's passes of one micro-batch, where that bounds a
    /// stage from below. With graphs it does not.
    pub(super) fn submits(&self, cost: &LayerCost, split: bool, redo: bool) -> Micros {
        if self.replay.is_some() {
            return Micros::ZERO;
        }
        let host = &cost.host;
        let backward = if split {
            host.input + host.weight
        } else {
            host.backward
        };
        let again = if redo { host.recompute } else { Micros::ZERO };
        host.forward + backward + again
    }

    /// How long what a layer keeps of one micro-batch is on the slower of the ways between
    /// device and host.
    pub(super) fn moves(&self, cost: &LayerCost) -> Micros {
        let times = self
            .machine
            .host_link()
            .map(|link| link.transfer(cost.activations, 1));
        times.map_or(Micros::ZERO, |times| {
            times.to_host.occupancy.max(times.to_device.occupancy)
        })
    }

    /// The distinct ways that values take between devices, and of each stage which of them its
    /// values take to the next one; none where that is on the same device, or there is none.
    pub(super) fn links(&self) -> (Vec<Way>, Vec<Option<usize>>) {
        let mut ways = vec![Way::Inside];
        let next = self.stages.iter().skip(1).map(Some).chain([None]);
        let of_stage = self.stages.iter().zip(next).map(|(stage, next)| {
            let way = self.machine.way(stage.device, next?.device)?;
            Some(ways.iter().position(|own| *own == way).unwrap_or_else(|| {
                ways.push(way);
                ways.len() - 1
            }))
        });
        let of_stage = of_stage.collect();
        (ways, of_stage)
    }

    /// At a cut behind a layer, to a stage that way off: how long one micro-batch's transfers
    /// take in all, and how long they occupy the link in one direction.
    pub(super) fn transfer_at(&self, cost: &LayerCost, way: Way) -> (Micros, Micros) {
        let times = self.machine.over(way, cost.output);
        let ways = if self.training { 2.0 } else { 1.0 };
        ((times.occupancy + times.latency) * ways, times.occupancy)
    }
}

impl LayerCost {
    fn drop_backward(&mut self) {
        (self.input, self.weight, self.backward, self.recompute) = Default::default();
        self.host = StageTimes {
            forward: self.host.forward,
            ..StageTimes::default()
        };
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

/// Of each stage how many micro-batches are on its device at the peak if it offloads, and
/// whether any leaves.
fn offloading(schedule: &CheckedSchedule) -> Vec<(u64, bool)> {
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
