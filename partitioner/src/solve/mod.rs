//! The best cut of a chain of layers into stages.
//!
//! A [`Problem`] says what the layers cost, which device each stage runs on and how many
//! micro-batches it holds; [`Problem::solve`] finds the cut whose slowest stage is as fast as
//! possible under the devices' memory limits.
//!
//! **What a stage costs.** The time of its layers divided by the speed of its device, once more
//! its forward where it recomputes, and what it waits for transfers ([`Transfer`]); and no less
//! than its host takes to submit it, and than its activations take over the link to the host
//! where it offloads them (what a stage recomputes from is taken to be little).
//!
//! **What is exact.** With one stage a device the answer is the optimum, whatever the costs,
//! limits and speeds; so it is with several stages a device unless their *shared* memory limit
//! decides. That case is NP-hard (two devices whose stages alternate, and layers with room on
//! either side of them, are the partition problem), so its search is bounded:
//! [`Solution::lower_bound`] tells how far from the optimum the answer can be at most.
//!
//! **Which of several.** Of the cuts whose bottleneck is the same, to the tick in which times are
//! counted (about a 2^50th of the chain), the answer is one over which the fewest bytes travel
//! ([`Solution::traffic`]), and of those one of evenly filled stages. Three searches stop short of
//! the fewest bytes: under a shared memory limit, over more than a million places for cuts, and
//! under limits in memory with recompute where too many starts of a stage would have to be compared.

mod block;
mod chain;
mod demands;
mod error;
mod memory;
mod probe;
mod problem;
mod search;
mod shared;
mod shortfall;
mod solver;
mod stage_costs;
#[cfg(test)]
mod tests;
mod traffic;

use std::fmt;
use std::str::FromStr;

use crate::partition::Partition;
use crate::units::{Bytes, Micros};
use crate::value_error::ValueError;

pub use block::block_partition;
pub use error::{Shortfall, SolveError};
pub(crate) use problem::ADAMW_STATE;
pub use problem::Problem;

/// Whether something is done that trades time for memory, or memory for time: recompute (stages
/// keep only their inputs and run the forward once more before the backward), offload of
/// activations, CUDA graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "activation checkpointing")]
#[doc(alias = "gradient checkpointing")]
pub enum When {
    /// On no stage.
    Never,
    /// On every stage that can.
    Always,
    /// Where it pays: recompute and offload where activations do not fit otherwise, graphs
    /// where the step is shorter.
    #[default]
    Auto,
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Never => "never",
            Self::Always => "always",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for When {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "never" => Ok(Self::Never),
            "always" => Ok(Self::Always),
            "auto" => Ok(Self::Auto),
            _ => Err(ValueError::Parse {
                text: text.chars().take(40).collect(),
                expected: "one of never, always, auto",
            }),
        }
    }
}

/// How a transfer at a cut counts towards the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transfer {
    /// The stage in front of the cut waits for it, there and (in training) back. So it is in
    /// schedules that hold no more micro-batches than there are stages ahead, such as 1F1B:
    /// from a stage with k in flight to the end and back, k micro-batches share one round
    /// trip, so that the mean over these stages of (own time + round trip to the next)
    /// bounds the period from below.
    Waited,
    /// It overlaps with work; only a link that is busy longer than any stage counts. So it
    /// is where more micro-batches are in flight than the transfers can delay.
    Overlapped,
}

/// How a cut is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// `profile`: the exact optimum for the profiled costs.
    #[default]
    Profile,
    /// `parameters`: parameter bytes as even as possible.
    Parameters,
    /// `uniform`: layer counts as even as possible.
    Uniform,
    /// `manual`: this many layers per stage.
    Manual(Vec<usize>),
}

impl Strategy {
    /// The names by which users ask for a strategy.
    pub const NAMES: [&str; 4] = ["profile", "parameters", "uniform", "manual"];

    /// The strategy of that name; `manual` needs the balance.
    ///
    /// # Errors
    /// If there is no such name, or a balance is missing or given for nothing.
    pub fn from_name(name: &str, balance: Option<&[usize]>) -> Result<Self, ValueError> {
        match (name, balance) {
            ("profile", None) => Ok(Self::Profile),
            ("parameters", None) => Ok(Self::Parameters),
            ("uniform", None) => Ok(Self::Uniform),
            ("manual", Some(balance)) => Ok(Self::Manual(balance.to_vec())),
            _ => Err(ValueError::Parse {
                text: name.chars().take(40).collect(),
                expected: "one of profile, parameters, uniform, or manual together with a balance",
            }),
        }
    }

    /// The name by which users ask for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Profile => "profile",
            Self::Parameters => "parameters",
            Self::Uniform => "uniform",
            Self::Manual(_) => "manual",
        }
    }
}

/// A cut, and what it costs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Solution {
    /// Which layers each stage has.
    pub partition: Partition,
    /// Whether each stage recomputes.
    pub recompute: Vec<bool>,
    /// Whether each stage offloads its activations.
    pub offload: Vec<bool>,
    /// What each stage costs for one micro-batch, transfers included.
    pub stage_times: Vec<Micros>,
    /// The largest of them.
    pub bottleneck: Micros,
    /// No cut within the memory limits has a smaller bottleneck than this: equal to
    /// `bottleneck` where the answer is proved to be the optimum.
    pub lower_bound: Micros,
    /// What each stage needs at its peak.
    pub stage_bytes: Vec<Bytes>,
    /// What one micro-batch sends from device to device on its way forward; in training as much
    /// comes back.
    pub traffic: Bytes,
}

impl Solution {
    /// Whether no cut has a smaller bottleneck.
    pub fn is_optimal(&self) -> bool {
        self.lower_bound >= self.bottleneck
    }

    /// Of each stage, whether it recomputes and whether it offloads.
    pub(crate) fn ways(&self) -> Vec<(bool, bool)> {
        let both = self.recompute.iter().copied();
        both.zip(self.offload.iter().copied()).collect()
    }
}
