//! The joint choice of balance, schedule, chunks, micro-batches, recompute, offload and CUDA
//! graphs.
//!
//! [`plan()`] takes every built-in schedule with every possible number of chunks and micro-batches, cuts
//! the layers exactly for it ([`Problem`]), simulates the step, moves single cuts as long as that helps,
//! computes a schedule for the costs of the best, and keeps the fastest that fits.

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
mod tries;
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

/// Version of `plan.json` that this build reads and writes.
pub const PLAN_VERSION: u64 = 1;

/// A configuration for running a model, with its prediction.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// The profiled model, if the profile names it.
    pub model: Option<ModelId>,
    /// Number type of the profile's measurements, if it is stated.
    pub precision: Option<String>,
    /// Kernels of the profile's measurements, if not libtorch's own choice.
    pub kernels: Option<String>,
    /// Device of the profile's measurements, such as `cuda:0`, if not the host itself.
    pub device: Option<String>,
    /// Doubts about the profile's measurements.
    pub doubts: Vec<String>,
    /// Layers per stage.
    pub partition: Partition,
    /// The device of each stage.
    pub placement: Vec<DeviceId>,
    /// The schedule.
    pub schedule: ScheduleKind,
    /// The action lists, if they were computed for these costs (the schedule is
    /// [`Auto`](ScheduleKind::Auto)) and have no name.
    pub computed: Option<Schedule>,
    /// Number of replicas of the pipeline.
    pub replicas: usize,
    /// Cards per device (tensor parallelism); 1 if each card is a device.
    pub tensor_parallel: usize,
    /// Order of neighbouring devices, if there are several replicas.
    pub neighbours: Neighbours,
    /// Whether each replica keeps only its share of the optimizer's state (ZeRO-1).
    pub shard_optimizer: bool,
    /// Distribution of the devices of all replicas over nodes, and the link between these; none if all
    /// are on one.
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
    /// Whether passes run as CUDA graphs, on the stages that can have them.
    pub cuda_graphs: bool,
    /// Computing time of the slowest stage for one micro-batch: its forward and backward, with
    /// recompute, without transfers.
    pub bottleneck: Micros,
    /// The simulated step.
    pub step: Micros,
    /// Lower bound on the step of all plans of the same search, if known: the step itself if it is
    /// proved to be the best.
    pub lower_bound: Option<Micros>,
    /// The simulated idle share of device time.
    pub bubble_fraction: f64,
    /// The simulated peak per device.
    pub peak_bytes: Vec<Bytes>,
    /// Limit of the plan, in a sentence, if stated.
    pub limit: Option<String>,
    /// Gains from more resources, if computed ([`what_more_devices`],
    /// [`what_more`](cluster::what_more)).
    pub more: Vec<More>,
    /// The runners-up: the best of each schedule and number of chunks in order (for a cluster, of each
    /// number of replicas, too), then those that do not fit, or were not tried since they cannot be
    /// faster.
    pub alternatives: Vec<Alternative>,
}

impl Plan {
    /// Devices of a replica.
    pub fn devices(&self) -> usize {
        self.peak_bytes.len()
    }

    /// Micro-batches of each replica.
    pub fn micro_batches_each(&self) -> usize {
        self.micro_batches / self.replicas.max(1)
    }

    /// The schedule's action lists.
    ///
    /// # Errors
    /// If the schedule does not exist for these numbers, which is possible for a plan read from a file,
    /// but not for one made by [`plan()`].
    pub fn generate(&self) -> Result<CheckedSchedule, ScheduleError> {
        if let Some(schedule) = &self.computed {
            return Ok(schedule.clone().check()?);
        }
        let shape = Shape::new(self.devices(), self.micro_batches_each()).with_chunks(self.chunks);
        self.schedule.generate(shape)
    }

    /// Returns the costs of its simulation, under its [schedule](Self::generate).
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
    /// Number of replicas of the pipeline.
    pub replicas: usize,
    /// Devices of a replica.
    pub devices: usize,
    /// Order of neighbouring devices.
    pub neighbours: Neighbours,
    /// Micro-batches in a mini-batch, those of all replicas.
    pub micro_batches: usize,
    /// Layers per stage; empty if no cut fits.
    pub balance: Vec<usize>,
    /// Stages that recompute.
    pub recomputing: usize,
    /// The simulated step; none if no cut fits.
    pub step: Option<Micros>,
    /// The simulated idle share of device time; none if no cut fits.
    pub bubble_fraction: Option<f64>,
    /// The simulated peak per device; empty if no cut fits, or if the plan's file does not contain it.
    pub peak_bytes: Vec<Bytes>,
    /// Why it loses.
    pub reason: String,
}

impl Alternative {
    /// Returns why it loses against `plan`, with its order of neighbours if that differs.
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
        /// The reason of the last combination tried.
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
        /// Memory of the largest card.
        memory: Bytes,
        /// Bytes of parameters, gradients and one optimizer state.
        states: Bytes,
        /// Additional memory per card that would suffice; none if not found.
        more: Option<Bytes>,
        /// Number of cards that would suffice; none if not found.
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
        /// The missing memory.
        shortfall: Shortfall,
    },
}

/// Describes sufficient changes.
fn enough(more: Option<Bytes>, cards: Option<usize>) -> String {
    let cards = cards.map(|cards| format!("{cards} cards like these"));
    let more = more.map(|more| format!("{} more on each", more.rounded_up()));
    let ways: Vec<String> = [more, cards].into_iter().flatten().collect();
    if ways.is_empty() {
        return "neither more memory nor more cards were found to be enough".to_owned();
    }
    format!("it fits with {}", ways.join(", or with "))
}
