//! Interface between an engine and the other processes of its pipeline.
//!
//! Every process compiles the same program and runs the part of its own devices. The engine gives a value for
//! a remote device to a [`Carrier`], with its [`Address`], which is the same number in every process; the
//! carrier there gives it to a [`Door`]. All processes vote on whether a step counts.

use super::program::{Address, Program};
use std::sync::Arc;

/// Vote of one process on a step, or on any other task of all processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ballot {
    /// Its part is done; the bytes are its message to all processes.
    Done(Vec<u8>),
    /// It has left the step because another process failed.
    Left,
    /// Its part failed, for this reason.
    Failed(String),
}

/// Result of a vote; the same in every process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All have done their part: their messages, in the order of ranks.
    Done(Vec<Vec<u8>>),
    /// At least one process failed or left the step.
    Failed {
        /// Lowest rank that failed or, if none did, that left the step.
        rank: usize,
        /// Its reason.
        why: String,
    },
}

/// A process of the pipeline no longer answers or cannot go on, so no other process can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} is lost: {why}")]
#[doc(alias = "dead rank")]
pub struct Lost {
    /// The process.
    pub rank: usize,
    /// Reason of the loss, as far as it is known.
    pub why: String,
}

impl Ballot {
    fn told(&self) -> Option<Vec<u8>> {
        match self {
            Self::Done(told) => Some(told.clone()),
            Self::Left | Self::Failed(_) => None,
        }
    }
}

impl Verdict {
    /// Counts the ballots, one per rank.
    pub fn of(ballots: &[Ballot]) -> Self {
        let failed = ballots.iter().enumerate().find_map(|(rank, ballot)| {
            let Ballot::Failed(why) = ballot else {
                return None;
            };
            Some((rank, why.clone()))
        });
        let left = || ballots.iter().position(|ballot| *ballot == Ballot::Left);
        let left = || left().map(|rank| (rank, "it left the step".to_owned()));
        match failed.or_else(left) {
            Some((rank, why)) => Self::Failed { rank, why },
            None => Self::Done(ballots.iter().filter_map(Ballot::told).collect()),
        }
    }
}

/// Takes values to the devices of other processes, and carries the votes of all processes. There is one per
/// process; all call [`begin`](Self::begin), [`vote`](Self::vote) and [`renew`](Self::renew) in the same
/// order.
#[doc(alias = "transport")]
#[doc(alias = "p2p")]
pub trait Carrier<V>: Send + Sync {
    /// Begins a step of `program` in this process: from now until the next vote has ended, and not before,
    /// gives the step's values to `door`. A stop that came before is given to it as well.
    ///
    /// # Errors
    /// A process is lost.
    fn begin(&self, program: &Arc<Program>, door: Arc<dyn Door<V>>) -> Result<(), Lost>;

    /// Sends a value of the current step. Called by the thread of a device, it must not wait for the
    /// receiver. All values of a device must arrive eventually, in any order.
    ///
    /// # Errors
    /// The value cannot be sent, which fails the step.
    fn send(&self, to: Address, value: V) -> anyhow::Result<()>;

    /// Reports that the step failed here because of `why`: all other processes leave it ([`Door::stop`]).
    fn stop(&self, why: &str);

    /// Waits until all processes have voted, and brings each the messages of all. A vote that ended in one
    /// process has the same result in all that are not lost, whatever fails next.
    ///
    /// # Errors
    /// A process is lost.
    fn vote(&self, ballot: Ballot) -> Result<Verdict, Lost>;

    /// Waits until all processes have called this, after a failed vote. No value and no stop that was sent
    /// before is given to a door afterwards.
    ///
    /// # Errors
    /// A process is lost.
    fn renew(&self) -> Result<(), Lost>;

    /// Rank of this process, as a [`Verdict`] names it, if known. With a rank, a failure here that follows a
    /// failure elsewhere is not reported: a stage may have read the remains of an aborted transfer.
    fn rank(&self) -> Option<usize> {
        None
    }

    /// Reports that this process cannot go on: the calls of all others fail from now on, and the current step
    /// is left.
    fn lose(&self, why: &str);
}

/// Receiver of the values that a carrier brings for the devices of its process.
pub trait Door<V>: Send + Sync {
    /// Delivers a value that has arrived.
    ///
    /// # Errors
    /// The program expects no value from another process there.
    fn deliver(&self, to: Address, value: V) -> Result<(), UnwantedValue>;

    /// Makes all devices leave the step: another process has failed or is lost.
    fn stop(&self);
}

/// A value arrived that the program does not want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value arrived for slot {} of device {}: the program wants none there from another process", .0.slot, .0.device)]
pub struct UnwantedValue(pub Address);
