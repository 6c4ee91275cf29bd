//! What the actions of each stage and the transfers between stages cost.

mod cards;
mod host_link;
mod joins;
mod link;
mod memory;
mod offload;

pub use cards::Cards;
pub(crate) use cards::Reach;
pub use host_link::HostLink;
pub use joins::Joins;
pub use link::Link;
pub use memory::StageMemory;
pub use offload::OffloadTimes;

use crate::cores::Cores;
use crate::ids::{DeviceId, StageId};
use crate::schedule::{ActionKind, Schedule};
use crate::units::{Bytes, Micros};

/// How long one micro-batch takes on a stage, by kind of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// F.
    pub forward: Micros,
    /// B, input and weight gradients jointly (in general not the sum of I and W:
    /// what both need is computed once).
    pub backward: Micros,
    /// I.
    pub input: Micros,
    /// W.
    pub weight: Micros,
    /// R.
    pub recompute: Micros,
}

impl StageTimes {
    /// The time of an action of that kind.
    pub const fn of(&self, kind: ActionKind) -> Micros {
        match kind {
            ActionKind::Forward => self.forward,
            ActionKind::Backward => self.backward,
            ActionKind::BackwardInput => self.input,
            ActionKind::BackwardWeight => self.weight,
            ActionKind::Recompute => self.recompute,
        }
    }

    /// The same with one time replaced.
    #[must_use]
    pub const fn with(mut self, kind: ActionKind, time: Micros) -> Self {
        match kind {
            ActionKind::Forward => self.forward = time,
            ActionKind::Backward => self.backward = time,
            ActionKind::BackwardInput => self.input = time,
            ActionKind::BackwardWeight => self.weight = time,
            ActionKind::Recompute => self.recompute = time,
        }
        self
    }
}

/// What a value costs on its way over one edge (stage s to s+1 and its gradient
/// back), when the two stages are on different devices; within a device it costs
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "p2p")]
#[doc(alias = "send")]
#[doc(alias = "recv")]
pub struct EdgeTimes {
    /// How long the value occupies the link: bytes / bandwidth. While a link is
    /// occupied, the next value waits.
    pub occupancy: Micros,
    /// How long the value is under way besides: a delay during which the link is free.
    pub latency: Micros,
}

/// Times per stage and per edge, of one micro-batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    stages: Vec<StageTimes>,
    edges: Vec<EdgeTimes>,
    memory: Vec<StageMemory>,
    cores: Option<Cores>,
    /// Empty where nobody submits or nothing is offloaded: most costs.
    host: Vec<StageTimes>,
    offload: Vec<OffloadTimes>,
    /// Of single micro-batches, where a schedule says so; empty where none may be.
    single_offload: Vec<OffloadTimes>,
    /// Empty without replicas.
    exchange: Vec<EdgeTimes>,
    cards: Option<Cards>,
    /// By device; empty where all are in one process.
    joins: Vec<Joins>,
}

impl Costs {
    /// The same times for each of `stages` stages; a joint backward takes the sum
    /// of its halves, a recompute as long as a forward, a transfer no time.
    pub fn uniform(stages: usize, forward: Micros, input: Micros, weight: Micros) -> Self {
        let times = StageTimes {
            forward,
            backward: input + weight,
            input,
            weight,
            recompute: forward,
        };
        Self::new(vec![times; stages])
    }

    /// One set of times per stage, transfers that take no time.
    pub fn new(stages: Vec<StageTimes>) -> Self {
        let edges = vec![EdgeTimes::default(); stages.len().saturating_sub(1)];
        let memory = vec![StageMemory::default(); stages.len()];
        Self {
            stages,
            edges,
            memory,
            cores: None,
            host: Vec::new(),
            offload: Vec::new(),
            single_offload: Vec::new(),
            exchange: Vec::new(),
            cards: None,
            joins: Vec::new(),
        }
    }

    /// Forward and joint backward times per stage; the backward's halves take
    /// half of it each, a recompute as long as the forward. As many stages as the
    /// shorter slice has.
    pub fn from_stage_times(forward: &[Micros], backward: &[Micros]) -> Self {
        let stage = |(&forward, &backward): (&Micros, &Micros)| StageTimes {
            forward,
            backward,
            input: backward * 0.5,
            weight: backward * 0.5,
            recompute: forward,
        };
        Self::new(forward.iter().zip(backward).map(stage).collect())
    }

    /// Every edge takes this long, in each direction.
    #[must_use]
    pub fn with_transfer(mut self, occupancy: Micros, latency: Micros) -> Self {
        self.edges.fill(EdgeTimes { occupancy, latency });
        self
    }

    /// The edge from `stage` to the next one takes this long, in each direction.
    /// The last stage has no such edge: nothing changes.
    #[must_use]
    pub fn with_edge(mut self, stage: StageId, times: EdgeTimes) -> Self {
        if let Some(edge) = self.edges.get_mut(stage.index()) {
            *edge = times;
        }
        self
    }

    /// An action of `kind` of `stage` takes this long. Nothing changes for a stage
    /// that the costs do not have.
    #[must_use]
    pub fn with_time(mut self, stage: StageId, kind: ActionKind, time: Micros) -> Self {
        if let Some(times) = self.stages.get_mut(stage.index()) {
            *times = times.with(kind, time);
        }
        self
    }

    /// `stage` takes this much memory. Nothing changes for a stage that the costs
    /// do not have.
    #[must_use]
    pub fn with_memory(mut self, stage: StageId, memory: StageMemory) -> Self {
        if let Some(place) = self.memory.get_mut(stage.index()) {
            *place = memory;
        }
        self
    }

    /// The devices share these cores; times are those of a device that has its cores.
    #[must_use]
    pub fn with_cores(mut self, cores: Cores) -> Self {
        self.cores = Some(cores);
        self
    }

    /// The device of `stage` is asynchronous: so long its host thread submits each kind of
    /// action. Nothing changes for a stage that the costs do not have.
    #[must_use]
    pub fn with_host(mut self, stage: StageId, times: StageTimes) -> Self {
        self.host.resize(self.stages.len(), StageTimes::default());
        if let Some(place) = self.host.get_mut(stage.index()) {
            *place = times;
        }
        self
    }

    /// The activations of `stage` that are offloaded take this long on their way. Nothing
    /// changes for a stage that the costs do not have.
    #[must_use]
    pub fn with_offload(mut self, stage: StageId, times: OffloadTimes) -> Self {
        self.offload
            .resize(self.stages.len(), OffloadTimes::default());
        if let Some(place) = self.offload.get_mut(stage.index()) {
            *place = times;
        }
        self
    }

    /// What `stage` offloads of a single micro-batch, where a schedule says so, takes this long on
    /// its way. Nothing changes for a stage that the costs do not have.
    #[must_use]
    pub fn with_single_offload(mut self, stage: StageId, times: OffloadTimes) -> Self {
        self.single_offload
            .resize(self.stages.len(), OffloadTimes::default());
        if let Some(place) = self.single_offload.get_mut(stage.index()) {
            *place = times;
        }
        self
    }

    /// The gradients of `stage` take this long to be added up over all replicas
    /// ([`Machine::exchange`](crate::Machine::exchange)). Nothing changes for a stage that the
    /// costs do not have.
    #[must_use]
    pub fn with_exchange(mut self, stage: StageId, times: EdgeTimes) -> Self {
        self.exchange
            .resize(self.stages.len(), EdgeTimes::default());
        if let Some(place) = self.exchange.get_mut(stage.index()) {
            *place = times;
        }
        self
    }

    /// The same with devices that share network cards.
    #[must_use]
    pub fn with_cards(mut self, cards: Cards) -> Self {
        self.cards = Some(cards);
        self
    }

    /// The same with devices in several processes, which begin the step one after the other: how
    /// that of each device does.
    #[must_use]
    pub fn with_joins(mut self, joins: Vec<Joins>) -> Self {
        self.joins = joins;
        self
    }

    /// The same with gradients that are exchanged in no time.
    #[must_use]
    pub fn without_exchange(mut self) -> Self {
        self.exchange.clear();
        self
    }

    /// The same with hosts that submit in no time.
    #[must_use]
    pub fn without_host(mut self) -> Self {
        self.host.clear();
        self
    }

    /// The same with activations that are offloaded, and come back, in no time.
    #[must_use]
    pub fn without_offload(mut self) -> Self {
        self.offload.clear();
        self.single_offload.clear();
        self
    }

    /// All times of `stage` multiplied by `factor` (0 for a negative one or NaN).
    #[must_use]
    pub fn scaled(mut self, stage: StageId, factor: f64) -> Self {
        if let Some(times) = self.stages.get_mut(stage.index()) {
            for kind in ActionKind::ALL {
                *times = times.with(kind, times.of(kind) * factor);
            }
        }
        self
    }

    /// The cores that the devices share; none where each has its own.
    pub fn cores(&self) -> Option<Cores> {
        self.cores
    }

    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// The times of `stage`; zeros for one that the costs do not have.
    pub fn stage(&self, stage: StageId) -> StageTimes {
        self.stages.get(stage.index()).copied().unwrap_or_default()
    }

    /// How long `stage` works for one micro-batch: its forward and its backward, in halves where the
    /// schedule runs them, with what it recomputes, and without transfers.
    pub(crate) fn work(&self, stage: StageId, halves: bool) -> Micros {
        let times = self.stage(stage);
        if halves {
            times.forward + times.input + times.weight
        } else {
            times.forward + times.backward
        }
    }

    /// The memory of `stage`; none for one that the costs do not have.
    pub fn memory(&self, stage: StageId) -> StageMemory {
        self.memory.get(stage.index()).copied().unwrap_or_default()
    }

    /// How long the host submits the actions of `stage`; zeros where that is no matter.
    pub fn host(&self, stage: StageId) -> StageTimes {
        self.host.get(stage.index()).copied().unwrap_or_default()
    }

    /// Whether any device has a host that takes time to submit.
    pub(crate) fn has_host(&self) -> bool {
        !self.host.is_empty()
    }

    /// How long what `stage` offloads is on its way; zeros where nothing is.
    pub fn offload(&self, stage: StageId) -> OffloadTimes {
        self.offload.get(stage.index()).copied().unwrap_or_default()
    }

    /// The same of a single micro-batch, where a schedule says that it is offloaded.
    pub fn single_offload(&self, stage: StageId) -> OffloadTimes {
        let times = self.single_offload.get(stage.index()).copied();
        times.unwrap_or_default()
    }

    /// Whether any offload takes time under a schedule that says what is offloaded (`singly`), or
    /// does not.
    pub(crate) fn has_offload(&self, singly: bool) -> bool {
        let single = singly && !self.single_offload.is_empty();
        !self.offload.is_empty() || single
    }

    /// How long what `stage` offloads under this schedule is on its way.
    pub(crate) fn offload_under(&self, schedule: &Schedule, stage: StageId) -> OffloadTimes {
        let own = self.offload(stage);
        if schedule.offloads().is_empty() || own != OffloadTimes::default() {
            own
        } else {
            self.single_offload(stage)
        }
    }

    /// How much `stage` offloads of a micro-batch under this schedule.
    pub(crate) fn offloaded_under(&self, schedule: &Schedule, stage: StageId) -> Bytes {
        let memory = self.memory(stage);
        if schedule.offloads().is_empty() {
            memory.offloaded
        } else {
            memory.offloaded + memory.offloadable
        }
    }

    /// How long the gradients of `stage` are exchanged between replicas; zeros where there is
    /// one replica.
    pub fn exchange(&self, stage: StageId) -> EdgeTimes {
        self.exchange
            .get(stage.index())
            .copied()
            .unwrap_or_default()
    }

    /// Whether any gradients are exchanged.
    pub(crate) fn has_exchange(&self) -> bool {
        !self.exchange.is_empty()
    }

    /// The network cards that devices share; none where each has its own.
    pub fn cards(&self) -> Option<&Cards> {
        self.cards.as_ref()
    }

    /// How the process of `device` comes into the step; none where all are in one.
    pub fn joins(&self, device: DeviceId) -> Option<Joins> {
        self.joins.get(device.index()).copied()
    }

    /// The times of the edge from `stage` to the next one; zeros where none is.
    pub fn edge(&self, stage: StageId) -> EdgeTimes {
        self.edges.get(stage.index()).copied().unwrap_or_default()
    }
}
