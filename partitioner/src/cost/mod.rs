//! Costs of the actions of each stage and of transfers between stages.

mod cards;
mod host_link;
mod link;
mod memory;

pub use cards::Cards;
pub(crate) use cards::Reach;
pub use host_link::{HostLink, OffloadTimes};
pub use link::Link;
pub use memory::StageMemory;

use crate::cores::Cores;
use crate::ids::{DeviceId, StageId};
use crate::schedule::{ActionKind, Schedule};
use crate::units::{Bytes, Micros};

/// Start of a device's process in a step ([`Machine::joins`](crate::Machine::joins)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joins {
    /// Number of the process.
    pub process: usize,
    /// Delay of its start behind the first process.
    pub after: Micros,
}

/// Times of one micro-batch on a stage, by kind of action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// F.
    pub forward: Micros,
    /// B, input and weight gradients jointly (in general not the sum of I and W, since shared work
    /// is done once).
    pub backward: Micros,
    /// I.
    pub input: Micros,
    /// W.
    pub weight: Micros,
    /// R.
    pub recompute: Micros,
}

impl StageTimes {
    /// Time of an action of this kind.
    pub const fn of(&self, kind: ActionKind) -> Micros {
        match kind {
            ActionKind::Forward => self.forward,
            ActionKind::Backward => self.backward,
            ActionKind::BackwardInput => self.input,
            ActionKind::BackwardWeight => self.weight,
            ActionKind::Recompute => self.recompute,
        }
    }

    /// Replaces one time.
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

/// Times of a value over one edge (stage s to s+1 and its gradient back), when the two stages are
/// on different devices; within a device a transfer is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "p2p")]
#[doc(alias = "send")]
#[doc(alias = "recv")]
pub struct EdgeTimes {
    /// Time that the value occupies the link: bytes / bandwidth. While a link is occupied, the next
    /// value waits.
    pub occupancy: Micros,
    /// Additional delay of the value, during which the link is free.
    pub latency: Micros,
}

/// Times per stage and per edge, of one micro-batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    stages: Vec<StageTimes>,
    edges: Vec<EdgeTimes>,
    memory: Vec<StageMemory>,
    cores: Option<Cores>,
    /// Empty if hosts take no time to submit, or nothing is offloaded: the usual case.
    host: Vec<StageTimes>,
    offload: Vec<OffloadTimes>,
    /// For single micro-batches, if a schedule says so; empty if none may be offloaded.
    single_offload: Vec<OffloadTimes>,
    /// Empty without replicas.
    exchange: Vec<EdgeTimes>,
    cards: Option<Cards>,
    /// By device; empty if all are in one process.
    joins: Vec<Joins>,
}

impl Costs {
    /// Creates equal times for each of `stages` stages; a joint backward takes the sum of its
    /// halves, a recompute as long as a forward, a transfer no time.
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

    /// Creates costs with these times per stage, and transfers that take no time.
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

    /// Creates costs from forward and joint backward times per stage; each half of the backward
    /// takes half of it, a recompute as long as the forward. As many stages as the shorter slice
    /// has.
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

    /// Sets the times of every edge, in each direction.
    #[must_use]
    pub fn with_transfer(mut self, occupancy: Micros, latency: Micros) -> Self {
        self.edges.fill(EdgeTimes { occupancy, latency });
        self
    }

    /// Sets the times of the edge from `stage` to the next one, in each direction. No effect for
    /// the last stage.
    #[must_use]
    pub fn with_edge(mut self, stage: StageId, times: EdgeTimes) -> Self {
        if let Some(edge) = self.edges.get_mut(stage.index()) {
            *edge = times;
        }
        self
    }

    /// Sets the time of an action of `kind` on `stage`. No effect for a stage that the costs do not
    /// have.
    #[must_use]
    pub fn with_time(mut self, stage: StageId, kind: ActionKind, time: Micros) -> Self {
        if let Some(times) = self.stages.get_mut(stage.index()) {
            *times = times.with(kind, time);
        }
        self
    }

    /// Sets the memory of `stage`. No effect for a stage that the costs do not have.
    #[must_use]
    pub fn with_memory(mut self, stage: StageId, memory: StageMemory) -> Self {
        if let Some(place) = self.memory.get_mut(stage.index()) {
            *place = memory;
        }
        self
    }

    /// Sets the cores that the devices share; times are those of a device that has its cores.
    #[must_use]
    pub fn with_cores(mut self, cores: Cores) -> Self {
        self.cores = Some(cores);
        self
    }

    /// Makes the device of `stage` asynchronous: `times` are those of its host thread to submit
    /// each kind of action. No effect for a stage that the costs do not have.
    #[must_use]
    pub fn with_host(mut self, stage: StageId, times: StageTimes) -> Self {
        self.host.resize(self.stages.len(), StageTimes::default());
        if let Some(place) = self.host.get_mut(stage.index()) {
            *place = times;
        }
        self
    }

    /// Sets the transfer times of the offloaded activations of `stage`. No effect for a stage that
    /// the costs do not have.
    #[must_use]
    pub fn with_offload(mut self, stage: StageId, times: OffloadTimes) -> Self {
        self.offload
            .resize(self.stages.len(), OffloadTimes::default());
        if let Some(place) = self.offload.get_mut(stage.index()) {
            *place = times;
        }
        self
    }

    /// Sets the transfer times of a single micro-batch that `stage` offloads, if a schedule says
    /// so. No effect for a stage that the costs do not have.
    #[must_use]
    pub fn with_single_offload(mut self, stage: StageId, times: OffloadTimes) -> Self {
        self.single_offload
            .resize(self.stages.len(), OffloadTimes::default());
        if let Some(place) = self.single_offload.get_mut(stage.index()) {
            *place = times;
        }
        self
    }

    /// Sets the times of the all-reduce of the gradients of `stage` over all replicas
    /// ([`Machine::exchange`](crate::Machine::exchange)). No effect for a stage that the costs do
    /// not have.
    #[must_use]
    pub fn with_exchange(mut self, stage: StageId, times: EdgeTimes) -> Self {
        self.exchange
            .resize(self.stages.len(), EdgeTimes::default());
        if let Some(place) = self.exchange.get_mut(stage.index()) {
            *place = times;
        }
        self
    }

    /// Sets the network cards that devices share.
    #[must_use]
    pub fn with_cards(mut self, cards: Cards) -> Self {
        self.cards = Some(cards);
        self
    }

    /// Sets, by device, how its process joins the step, for processes that begin the step one after
    /// the other.
    #[must_use]
    pub fn with_joins(mut self, joins: Vec<Joins>) -> Self {
        self.joins = joins;
        self
    }

    /// Makes exchanges of gradients take no time.
    #[must_use]
    pub fn without_exchange(mut self) -> Self {
        self.exchange.clear();
        self
    }

    /// Makes submission by hosts take no time.
    #[must_use]
    pub fn without_host(mut self) -> Self {
        self.host.clear();
        self
    }

    /// Makes offloads take no time, there and back.
    #[must_use]
    pub fn without_offload(mut self) -> Self {
        self.offload.clear();
        self.single_offload.clear();
        self
    }

    /// Multiplies all times of `stage` by `factor` (0 for a negative one or NaN).
    #[must_use]
    pub fn scaled(mut self, stage: StageId, factor: f64) -> Self {
        if let Some(times) = self.stages.get_mut(stage.index()) {
            for kind in ActionKind::ALL {
                *times = times.with(kind, times.of(kind) * factor);
            }
        }
        self
    }

    /// The cores that the devices share; none if each has its own.
    pub fn cores(&self) -> Option<Cores> {
        self.cores
    }

    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// The times of `stage`; zeros for a stage that the costs do not have.
    pub fn stage(&self, stage: StageId) -> StageTimes {
        self.stages.get(stage.index()).copied().unwrap_or_default()
    }

    /// Computing time of `stage` for one micro-batch: its forward and its backward (in halves if
    /// the schedule splits it), with recompute, without transfers.
    pub(crate) fn work(&self, stage: StageId, halves: bool) -> Micros {
        let times = self.stage(stage);
        if halves {
            times.forward + times.input + times.weight
        } else {
            times.forward + times.backward
        }
    }

    /// The memory of `stage`; none for a stage that the costs do not have.
    pub fn memory(&self, stage: StageId) -> StageMemory {
        self.memory.get(stage.index()).copied().unwrap_or_default()
    }

    /// Times of the host to submit the actions of `stage`; zeros if they do not matter.
    pub fn host(&self, stage: StageId) -> StageTimes {
        self.host.get(stage.index()).copied().unwrap_or_default()
    }

    /// Whether any host takes time to submit.
    pub(crate) fn has_host(&self) -> bool {
        !self.host.is_empty()
    }

    /// Transfer times of the activations that `stage` offloads; zeros if it offloads none.
    pub fn offload(&self, stage: StageId) -> OffloadTimes {
        self.offload.get(stage.index()).copied().unwrap_or_default()
    }

    /// Same as `offload`, for a single micro-batch that a schedule offloads.
    pub fn single_offload(&self, stage: StageId) -> OffloadTimes {
        let times = self.single_offload.get(stage.index()).copied();
        times.unwrap_or_default()
    }

    /// Whether any offload takes time; `singly` if the schedule lists its offloads.
    pub(crate) fn has_offload(&self, singly: bool) -> bool {
        let single = singly && !self.single_offload.is_empty();
        !self.offload.is_empty() || single
    }

    /// Transfer times of the activations that `stage` offloads under this schedule.
    pub(crate) fn offload_under(&self, schedule: &Schedule, stage: StageId) -> OffloadTimes {
        let own = self.offload(stage);
        if schedule.offloads().is_empty() || own != OffloadTimes::default() {
            own
        } else {
            self.single_offload(stage)
        }
    }

    /// Bytes that `stage` offloads per micro-batch under this schedule.
    pub(crate) fn offloaded_under(&self, schedule: &Schedule, stage: StageId) -> Bytes {
        let memory = self.memory(stage);
        if schedule.offloads().is_empty() {
            memory.offloaded
        } else {
            memory.offloaded + memory.offloadable
        }
    }

    /// Times of the exchange of the gradients of `stage` between replicas; zeros for one replica.
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

    /// The network cards that devices share; none if each has its own.
    pub fn cards(&self) -> Option<&Cards> {
        self.cards.as_ref()
    }

    /// How the process of `device` joins the step; none if all are in one process.
    pub fn joins(&self, device: DeviceId) -> Option<Joins> {
        self.joins.get(device.index()).copied()
    }

    /// The times of the edge from `stage` to the next one; zeros if there is none.
    pub fn edge(&self, stage: StageId) -> EdgeTimes {
        self.edges.get(stage.index()).copied().unwrap_or_default()
    }
}
