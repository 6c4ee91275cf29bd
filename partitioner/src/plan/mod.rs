//! The joint choice of balance, schedule, chunks, micro-batches, recompute, offload and CUDA
//! graphs.
//!
//! [`plan()`] takes every built-in schedule with every number of chunks and micro-batches that
//! it can do, cuts the layers exactly for it ([`Problem`]), simulates the
//! step, moves single cuts as long as that helps, computes a schedule for the costs of the best,
//! and keeps the fastest that fits.

mod candidate;
pub mod cluster;
mod job;
mod leaders;
mod more;
mod options;
mod polish;
mod read;
mod search;
#[cfg(test)]
mod tests;
mod why;
mod write;

use crate::builtin::{ScheduleError, ScheduleKind};
use crate::check::CheckedSchedule;
use crate::cost::Costs;
use crate::ids::DeviceId;
use crate::machine::{Neighbours, Nodes};
use crate::model::ModelId;
use crate::partition::Partition;
use crate::profile::Profile;
use crate::schedule::{Schedule, Shape};
use crate::solve::{Problem, Shortfall, When};
use crate::units::{Bytes, Micros};
use crate::words::count;

pub use more::{More, what_more_devices};
pub use options::PlanOptions;
pub use search::plan;

/// The version of `plan.json` that this build reads and writes.
pub const PLAN_VERSION: u64 = 1;

/// How a model is to be run, and what that is predicted to take.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// The model that was profiled, where the profile names it.
    pub model: Option<ModelId>,
    /// The type of numbers that the profile was measured in, where it says so.
    pub precision: Option<String>,
    /// Whose kernels the profile was measured with, where that was not libtorch's own choice.
    pub kernels: Option<String>,
    /// The device that the profile was measured on, such as `cuda:0`, where that is none of the host's.
    pub device: Option<String>,
    /// What speaks against the measurements that it was made from.
    pub doubts: Vec<String>,
    /// Layers per stage.
    pub partition: Partition,
    /// The device of each stage.
    pub placement: Vec<DeviceId>,
    /// The schedule.
    pub schedule: ScheduleKind,
    /// The action lists, where they were computed for these costs (the schedule is
    /// [`Auto`](ScheduleKind::Auto)) and no name stands for them.
    pub computed: Option<Schedule>,
    /// How many times the pipeline is there.
    pub replicas: usize,
    /// Cards that are one device together (tensor parallelism); 1 where each is one.
    pub tensor_parallel: usize,
    /// Which devices are next to each other, where there are several replicas.
    pub neighbours: Neighbours,
    /// Whether each replica keeps its share of the optimizer's state alone (ZeRO-1).
    pub shard_optimizer: bool,
    /// How the devices of all replicas are spread over nodes, and the link between these; none
    /// where all are on one.
    pub nodes: Option<Nodes>,
    /// Micro-batches in a mini-batch, those of all replicas.
    pub micro_batches: usize,
    /// Stages per device.
    pub chunks: usize,
    /// Samples in a micro-batch (the last one may have fewer).
    pub micro_batch_size: usize,
    /// Samples in a mini-batch, those of all replicas; none in plans of earlier builds.
    pub batch: Option<usize>,
    /// Whether each stage recomputes.
    pub recompute: Vec<bool>,
    /// Whether each stage offloads its activations.
    pub offload: Vec<bool>,
    /// Whether passes are put into CUDA graphs, on the stages that can have them.
    pub cuda_graphs: bool,
    /// How long the slowest stage works for one micro-batch: its forward and backward, with what it
    /// recomputes, and without transfers.
    pub bottleneck: Micros,
    /// The simulated step.
    pub step: Micros,
    /// What no plan of the same search takes less than, where that is known: the step itself where it is
    /// proved to be the best.
    pub lower_bound: Option<Micros>,
    /// The simulated idle share of device time.
    pub bubble_fraction: f64,
    /// The simulated peak per device.
    pub peak_bytes: Vec<Bytes>,
    /// What limits it, in a sentence, where somebody said so.
    pub limit: Option<String>,
    /// What more of something would bring, where that was looked for
    /// ([`what_more_devices`], [`what_more`](cluster::what_more)).
    pub more: Vec<More>,
    /// The runners-up, the best of each schedule and number of chunks first to last (for a
    /// cluster, of each number of replicas, too), and then those that do not fit, or are not tried
    /// since they cannot be faster.
    pub alternatives: Vec<Alternative>,
}

impl Plan {
    /// Devices of a replica.
    pub fn devices(&self) -> usize {
        self.peak_bytes.len()
    }

    /// Micro-batches that each replica takes.
    pub fn micro_batches_each(&self) -> usize {
        self.micro_batches / self.replicas.max(1)
    }

    /// The schedule's action lists.
    ///
    /// # Errors
    /// If the schedule does not exist for these numbers, which a plan read from a file can
    /// say although [`plan()`] never does.
    pub fn generate(&self) -> Result<CheckedSchedule, ScheduleError> {
        if let Some(schedule) = &self.computed {
            return Ok(schedule.clone().check()?);
        }
        let shape = Shape::new(self.devices(), self.micro_batches_each()).with_chunks(self.chunks);
        self.schedule.generate(shape)
    }

    /// What its step is simulated with, under its [schedule](Self::generate).
    pub fn costs(
        &self,
        profile: &Profile,
        options: &PlanOptions,
        schedule: &CheckedSchedule,
    ) -> Costs {
        let size = self.micro_batch_size;
        Problem::new(profile, size, &options.machine, schedule)
            .with_graphs(self.cuda_graphs.then(|| profile.graph_replay()))
            .with_optimizer_state(options.optimizer_state)
            .with_tree(options.tree)
            .with_offload(When::Auto)
            .stage_costs(&self.partition, &self.recompute, &self.offload)
    }
}

/// A plan that was not chosen.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Alternative {
    /// The schedule.
    pub schedule: ScheduleKind,
    /// Stages per device.
    pub chunks: usize,
    /// How many times the pipeline is there.
    pub replicas: usize,
    /// Devices of a replica.
    pub devices: usize,
    /// Which devices are next to each other.
    pub neighbours: Neighbours,
    /// Micro-batches in a mini-batch, those of all replicas.
    pub micro_batches: usize,
    /// Layers per stage; empty where no cut fits.
    pub balance: Vec<usize>,
    /// Stages that recompute.
    pub recomputing: usize,
    /// The simulated step; none where no cut fits.
    pub step: Option<Micros>,
    /// The simulated idle share of device time; none where no cut fits.
    pub bubble_fraction: Option<f64>,
    /// The simulated peak per device; empty where no cut fits, or where the plan's file
    /// does not say.
    pub peak_bytes: Vec<Bytes>,
    /// Why it loses.
    pub reason: String,
}

impl Alternative {
    /// Why it loses against `plan`, and which of its devices are next to each other where that is
    /// another choice.
    pub fn why_not(&self, plan: &Plan) -> String {
        let chosen = self.devices > 1 && self.replicas > 1;
        if chosen && self.neighbours != plan.neighbours {
            let neighbours = self.neighbours.name();
            return format!("{}; next to each other are {neighbours}", self.reason);
        }
        self.reason.clone()
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Options that contradict each other or the profile.
    #[error("{0}")]
    Options(String),
    /// No schedule exists for these numbers.
    #[error("no schedule exists for {devices} devices and {layers} layers: {reason}")]
    NoSchedule {
        /// Devices asked for.
        devices: usize,
        /// Layers of the profile.
        layers: usize,
        /// The reason that the last one tried gives.
        reason: String,
    },
    /// Nothing fits the memory of a cluster's cards.
    #[error(
        "nothing fits {} of {memory}: parameters, gradients and optimizer state alone are {states}; \
         {}", count(*.cards, "card"), enough(*.more, *.more_cards)
    )]
    Shortage {
        /// Cards of the cluster.
        cards: usize,
        /// The memory of the card that has most.
        memory: Bytes,
        /// What parameters, gradients and one optimizer state have.
        states: Bytes,
        /// With so much more on each card something fits; none where none was found.
        more: Option<Bytes>,
        /// With so many cards in all something fits; none where none was found.
        more_cards: Option<usize>,
    },
    /// Nothing fits the devices' memory.
    #[error(
        "nothing fits the memory; nearest is {schedule} with {} and {}: {shortfall}",
        count(*.chunks, "chunk"),
        count(*.micro_batches, "micro-batch")
    )]
    NoneFits {
        /// The schedule that comes nearest.
        schedule: ScheduleKind,
        /// Its stages per device.
        chunks: usize,
        /// Its micro-batches.
        micro_batches: usize,
        /// The memory that it lacks.
        shortfall: Shortfall,
    },
}

/// What would be enough.
fn enough(more: Option<Bytes>, cards: Option<usize>) -> String {
    let cards = cards.map(|cards| format!("{cards} cards like these"));
    let more = more.map(|more| format!("{} more on each", more.rounded_up()));
    let ways: Vec<String> = [more, cards].into_iter().flatten().collect();
    if ways.is_empty() {
        return "neither more memory nor more cards were found to be enough".to_owned();
    }
    format!("it fits with {}", ways.join(", or with "))
}
