//! What is to be cut, and the strategies that cut it.

use super::chain::{Chain, Cut, Part};
use super::memory::{Held, Memory, PLAIN, REDO, Ways};
use super::search::{self, Found};
use super::{RecomputeChoice, Solution, SolveError, Strategy, Transfer, error};
use crate::check::CheckedSchedule;
use crate::cost::{Costs, StageTimes};
use crate::ids::{DeviceId, StageId};
use crate::machine::{Device, Machine};
use crate::partition::{Partition, PartitionError};
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

    /// The best cut: [`Strategy::Profile`].
    ///
    /// Of the cuts with the smallest bottleneck it takes one with evenly filled stages.
    ///
    /// # Errors
    /// If there are more stages than layers, or no cut fits the devices' memory.
    ///
    /// # Complexity
    /// O(b · stages · w) where b is the number of bisection steps, at most 60, and w the
    /// number of positions that a cut can have, at most the number of layers.
    ///
    /// # Source
    /// Bisection over the answer as in Pinar and Aykanat, *Fast optimal load balancing
    /// algorithms for 1D partitioning*, 2004, with the greedy probe replaced by a dynamic
    /// program over reachable cuts: see the module `probe`.
    pub fn solve(&self) -> Result<Solution, SolveError> {
        let chain = self.chain()?;
        match search::best(&chain) {
            Some(Found { cut, lower_bound }) => Ok(solution(&chain, &cut, lower_bound)),
            None => Err(error::explain(&chain)),
        }
    }

    /// As [`solve`](Self::solve), without looking for the reason if no cut fits.
    pub(crate) fn solution(&self) -> Option<Solution> {
        let chain = self.chain().ok()?;
        let Found { cut, lower_bound } = search::best(&chain)?;
        Some(solution(&chain, &cut, lower_bound))
    }

    /// The cut by a strategy.
    ///
    /// # Errors
    /// Those of [`solve`](Self::solve), and that the cut does not fit the devices' memory.
    pub fn solve_by(&self, strategy: &Strategy) -> Result<Solution, SolveError> {
        let layers = self.costs.len();
        let partition = match strategy {
            Strategy::Profile => return self.solve(),
            Strategy::Parameters => {
                let weights: Vec<u64> = self.costs.iter().map(|cost| cost.parameters.0).collect();
                Partition::by_weight(&weights, self.stages.len())?
            }
            Strategy::Uniform => Partition::uniform(layers, self.stages.len())?,
            Strategy::Manual(balance) => Partition::from_balance(layers, balance)?,
        };
        self.evaluate(&partition)
    }

    /// What a given cut costs, each stage recomputing if the rule asks for it.
    ///
    /// # Errors
    /// If the partition has another number of stages or layers, or does not fit the memory.
    pub fn evaluate(&self, partition: &Partition) -> Result<Solution, SolveError> {
        let (given, stages) = (partition.stages(), self.stages.len());
        if given != stages {
            return Err(SolveError::Stages { given, stages });
        }
        let (given, layers) = (partition.layers(), self.costs.len());
        if given != layers {
            return Err(SolveError::Layers { given, layers });
        }
        let chain = Chain::new(self);
        let cut = with_modes(&chain, partition);
        error::check_fit(&chain, &cut)?;
        Ok(solution(&chain, &cut, 0))
    }

    /// The problem in whole numbers, if every stage can have a layer.
    fn chain(&self) -> Result<Chain, PartitionError> {
        let (stages, layers) = (self.stages.len(), self.costs.len());
        if stages > layers {
            return Err(PartitionError::TooManyStages { stages, layers });
        }
        Ok(Chain::new(self))
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

fn solution(chain: &Chain, cut: &Cut, lower_bound: i64) -> Solution {
    let ticks = |stage| chain.cost(stage, cut.parts[stage], cut.end(stage, chain));
    let bytes = |stage| Bytes(chain.bytes(stage, cut.parts[stage], cut.end(stage, chain)));
    let mut cuts: Vec<usize> = cut.parts.iter().map(|part| part.start).collect();
    cuts.push(chain.layers);
    Solution {
        partition: Partition::from_cuts(cuts),
        recompute: cut.parts.iter().map(|part| part.mode == REDO).collect(),
        stage_times: (0..chain.stages)
            .map(|stage| chain.micros(ticks(stage)))
            .collect(),
        bottleneck: chain.micros(chain.bottleneck(cut)),
        lower_bound: chain.micros(lower_bound),
        stage_bytes: (0..chain.stages).map(bytes).collect(),
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

/// The partition with each stage in the first mode allowed, changed where a device is too
/// full: the stages that save most first.
fn with_modes(chain: &Chain, partition: &Partition) -> Cut {
    let mode = chain.modes[0];
    let parts = partition.cuts()[..chain.stages].iter();
    let mut cut = Cut {
        parts: parts.map(|&start| Part { start, mode }).collect(),
    };
    let Some(&other) = chain.modes.get(1) else {
        return cut;
    };
    let saved = |cut: &Cut, stage: usize| {
        let (part, end) = (cut.parts[stage], cut.end(stage, chain));
        let with = chain.bytes(
            stage,
            Part {
                mode: other,
                ..part
            },
            end,
        );
        chain.bytes(stage, part, end).saturating_sub(with)
    };
    for (device, bytes) in chain.device_bytes(&cut).into_iter().enumerate() {
        let Some(cap) = chain.caps[device] else {
            continue;
        };
        let mut excess = bytes.saturating_sub(cap);
        let mut stages: Vec<usize> = (0..chain.stages)
            .filter(|&s| chain.device[s] == device)
            .collect();
        stages.sort_by_key(|&stage| std::cmp::Reverse(saved(&cut, stage)));
        for stage in stages {
            let saves = saved(&cut, stage);
            if excess == 0 || saves == 0 {
                break;
            }
            cut.parts[stage].mode = other;
            excess = excess.saturating_sub(saves);
        }
    }
    cut
}
