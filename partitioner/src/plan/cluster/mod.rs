//! The joint choice for a cluster: cards, number of replicas, length of the pipeline, neighbours,
//! and everything that [`plan()`](super::plan()) chooses for one pipeline.
//!
//! The page "The planner of clusters" of the book has the design.

mod bound;
mod choices;
mod estimate;
mod least_memory;
mod more;
mod numbers;
mod runners_up;
mod search;
mod shortage;
mod transformer;
mod trial;

pub use least_memory::{TooLarge, too_large};
pub use more::what_more;
pub use search::plan_cluster;
pub use transformer::{TransformerOptions, TransformerPlan, plan_transformer};

use super::PlanError;
use super::options::{MAX_MICRO, check_fewest, check_replicas};
use crate::builtin::ScheduleKind;
use crate::machine::Neighbours;
use crate::machine::cluster::Cluster;
use crate::profile::{MAX_BATCH, Profile};
use crate::solve::When;
use crate::words::count;

/// A cluster, a mini-batch and the choices fixed in advance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// The cards and links.
    pub cluster: Cluster,
    /// Samples in a mini-batch.
    pub batch: usize,
    /// Replicas of the pipeline (d); none: to be chosen.
    pub replicas: Option<usize>,
    /// Devices of each replica (p); none: to be chosen.
    pub devices: Option<usize>,
    /// Order of neighbouring cards; none: to be chosen.
    pub neighbours: Option<Neighbours>,
    /// Micro-batches in a mini-batch, those of all replicas; none: to be chosen.
    pub micro_batches: Option<usize>,
    /// Samples in a micro-batch; none: to be chosen.
    pub micro_batch_size: Option<usize>,
    /// The schedule, a built-in one; none: to be chosen.
    pub schedule: Option<ScheduleKind>,
    /// Stages per device (v); none: to be chosen.
    pub chunks: Option<usize>,
    /// Whether stages recompute.
    pub recompute: When,
    /// Whether each replica keeps only its share of the optimizer's state (ZeRO-1). By default if
    /// memory requires it.
    pub shard_optimizer: When,
    /// Bytes of optimizer state per byte of parameters, before it is shared among replicas.
    pub optimizer_state: f64,
    /// Whether the number of replicas must be a power of two, as for the tree in which `train` adds
    /// gradients.
    pub tree: bool,
}

impl ClusterOptions {
    /// Creates options with everything to be chosen, for an `AdamW` optimizer.
    pub fn new(cluster: Cluster, batch: usize) -> Self {
        Self {
            cluster,
            batch,
            replicas: None,
            devices: None,
            neighbours: None,
            micro_batches: None,
            micro_batch_size: None,
            schedule: None,
            chunks: None,
            recompute: When::Auto,
            shard_optimizer: When::Auto,
            optimizer_state: crate::solve::ADAMW_STATE,
            tree: true,
        }
    }

    /// Checks that micro-batches can have the fewest samples that the model can train on.
    fn check_fewest(&self, fewest: usize) -> Result<(), PlanError> {
        let micro = match (self.micro_batches, self.micro_batch_size) {
            (Some(micro), _) => micro,
            (None, Some(size)) => self.batch.div_ceil(size),
            (None, None) => self.replicas.unwrap_or(1),
        };
        check_fewest(fewest, self.batch, micro)
    }

    /// Checks that these numbers are possible.
    fn check(&self, profile: &Profile) -> Result<(), PlanError> {
        let wrong = |rule: String| Err(PlanError::Options(rule));
        let (batch, cards) = (self.batch, self.cluster.cards());
        if !(1..=MAX_BATCH * 64).contains(&batch) {
            let most = MAX_BATCH * 64;
            return wrong(format!(
                "a mini-batch of {batch}: must be from 1 to {most}",
                batch = count(batch, "sample")
            ));
        }
        if let Some(micro) = self.micro_batches
            && !(1..=batch.min(MAX_MICRO)).contains(&micro)
        {
            let most = batch.min(MAX_MICRO);
            return wrong(format!(
                "{micro} of a mini-batch of {batch}: must be from 1 to {most}",
                batch = count(batch, "sample"),
                micro = count(micro, "micro-batch")
            ));
        }
        if let Some(size) = self.micro_batch_size
            && !(1..=batch).contains(&size)
        {
            return wrong(format!(
                "micro-batches of {size}: must be from 1 to the {batch} of the mini-batch",
                size = count(size, "sample")
            ));
        }
        let fixed = [
            ("replicas", self.replicas),
            ("devices a replica", self.devices),
        ];
        for (what, number) in fixed {
            if let Some(number) = number.filter(|own| !(1..=cards).contains(own)) {
                return wrong(format!(
                    "{number} {what}: the cluster has {cards} cards, so there are from 1 to {cards}"
                ));
            }
        }
        let tree = self.replicas.filter(|_| self.tree);
        tree.map_or(Ok(()), check_replicas)?;
        if let (Some(d), Some(m)) = (self.replicas, self.micro_batches)
            && !m.is_multiple_of(d)
        {
            return wrong(format!(
                "{m} for {d} replicas: each takes as many, so it must be a multiple \
                 of {d}",
                m = count(m, "micro-batch")
            ));
        }
        if let Some(d) = self.replicas.filter(|d| *d > batch) {
            return wrong(format!(
                "a mini-batch of {batch} has not one for each of {d}",
                batch = count(batch, "sample"),
                d = count(d, "replica")
            ));
        }
        self.check_fewest(profile.fewest_samples())?;
        match self.schedule {
            Some(kind) if !kind.trains() || kind == ScheduleKind::Auto => wrong(format!(
                "a cluster is planned for built-in training schedules, and `{kind}` is none"
            )),
            _ => Ok(()),
        }
    }
}
