//! The best cut of a chain of layers into stages.
//!
//! A [`Problem`] has the costs of the layers, the device of each stage and the number of
//! micro-batches that it holds; [`Problem::solve`] finds the cut whose slowest stage is as fast as
//! possible under the devices' memory limits.
//!
//! **Cost of a stage.** The time of its layers divided by the speed of its device, plus its forward
//! again if it recomputes, and its waits for transfers ([`Transfer`]); at least the time in which
//! its host submits it, and in which its activations cross the link to the host if it offloads them
//! (the inputs of a recompute are assumed to be small).
//!
//! **Exactness.** With one stage per device the answer is the optimum, for any costs, limits and
//! speeds; also with several stages per device unless their *shared* memory limit decides. That
//! case is NP-hard (two devices whose stages alternate, and layers with room on either side of
//! them, are the partition problem), so its search is bounded: [`Solution::lower_bound`] limits the
//! distance from the optimum.
//!
//! **Ties.** Among cuts with the same bottleneck, to the tick in which times are counted (about a
//! 2^50th of the chain), the answer is one with the least traffic ([`Solution::traffic`]), and
//! among those one with evenly filled stages. Three searches may miss the least traffic: under a
//! shared memory limit, with more than a million positions for cuts, and under memory limits with
//! recompute if too many starts of a stage would have to be compared.

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

/// Whether to use a means that trades time for memory, or memory for time: recompute (stages keep
/// only their inputs and run the forward again before the backward), offload of activations, CUDA
/// graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "activation checkpointing")]
#[doc(alias = "gradient checkpointing")]
pub enum When {
    /// On no stage.
    Never,
    /// On every stage that can.
    Always,
    /// Where it pays: recompute and offload if activations do not fit otherwise, graphs if the step
    /// is shorter.
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

/// Effect of a transfer at a cut on the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transfer {
    /// The stage before the cut waits for it, there and (in training) back. This holds for
    /// schedules with no more micro-batches in flight than there are stages ahead, such as 1F1B:
    /// from a stage with k in flight to the end and back, k micro-batches share one round trip, so
    /// the mean over these stages of (own time + round trip to the next) bounds the period from
    /// below.
    Waited,
    /// It overlaps with work; only a link that is busy longer than any stage counts. This holds if
    /// more micro-batches are in flight than the transfers can delay.
    Overlapped,
}

/// Method of choosing a cut.
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
    /// Names of strategies on the command line.
    pub const NAMES: [&str; 4] = ["profile", "parameters", "uniform", "manual"];

    /// Returns the strategy of that name; `manual` needs the balance.
    ///
    /// # Errors
    /// If there is no such name, or a balance is missing or superfluous.
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

    /// Name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Profile => "profile",
            Self::Parameters => "parameters",
            Self::Uniform => "uniform",
            Self::Manual(_) => "manual",
        }
    }
}

/// A cut, with its costs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Solution {
    /// Layers of each stage.
    pub partition: Partition,
    /// Whether each stage recomputes.
    pub recompute: Vec<bool>,
    /// Whether each stage offloads its activations.
    pub offload: Vec<bool>,
    /// Time of each stage for one micro-batch, including transfers.
    pub stage_times: Vec<Micros>,
    /// The largest stage time.
    pub bottleneck: Micros,
    /// Lower bound on the bottleneck of all cuts within the memory limits: equal to `bottleneck` if
    /// the answer is proved to be the optimum.
    pub lower_bound: Micros,
    /// Peak memory of each stage.
    pub stage_bytes: Vec<Bytes>,
    /// Bytes of one micro-batch sent between devices on the way forward; in training as much comes
    /// back.
    pub traffic: Bytes,
}

impl Solution {
    /// Whether no cut has a smaller bottleneck.
    pub fn is_optimal(&self) -> bool {
        self.lower_bound >= self.bottleneck
    }

    /// Returns, for each stage, whether it recomputes and whether it offloads.
    pub(crate) fn ways(&self) -> Vec<(bool, bool)> {
        let both = self.recompute.iter().copied();
        both.zip(self.offload.iter().copied()).collect()
    }
}
