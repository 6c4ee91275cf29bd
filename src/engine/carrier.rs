//! What an engine needs of the other processes that a pipeline is spread over.
//!
//! Every process compiles the same program and runs the part of its own devices. A value for a
//! device elsewhere is given to a [`Carrier`], with its [`Address`], which is the same number
//! in every process; the carrier there gives it to a [`Door`]. Whether a step counts is decided
//! by a vote of all.

use super::program::Program;
use gpipe_partitioner::DeviceId;
use std::sync::Arc;

/// Where a value goes: a slot of a device, as the program of the step numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The device that consumes the value.
    pub device: DeviceId,
    /// The value's slot in the device's table; see [`Program::arrivals`].
    pub slot: usize,
}

/// What a process says of a step, or of any other task of all processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ballot {
    /// Its part is done, and it tells this to all others.
    Done(Vec<u8>),
    /// It has left the step because another process failed.
    Left,
    /// Its part failed, for this reason.
    Failed(String),
}

/// What became of a vote; the same in every process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All have done their part: what each of them tells, in the order of ranks.
    Done(Vec<Vec<u8>>),
    /// Somebody has not.
    Failed {
        /// Of those that gave a reason, the lowest rank.
        rank: usize,
        /// Its reason.
        why: String,
    },
}

/// A process of the pipeline does not answer any more, or cannot go on: none of the others can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} is lost: {why}")]
#[doc(alias = "dead rank")]
pub struct Lost {
    /// The process.
    pub rank: usize,
    /// What is known of it.
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
    /// Of one ballot per rank.
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

/// Takes values to the devices of other processes, and tells all processes what became of a
/// step. There is one per process; all call [`begin`](Self::begin), [`vote`](Self::vote) and
/// [`renew`](Self::renew) in the same order.
#[doc(alias = "transport")]
#[doc(alias = "p2p")]
pub trait Carrier<V>: Send + Sync {
    /// A step of `program` begins in this process: from now on, and not before, what arrives
    /// for it is given to `door`, until the next vote has ended. A stop that came before is
    /// given to it as well.
    ///
    /// # Errors
    /// A process is lost.
    fn begin(&self, program: &Arc<Program>, door: Arc<dyn Door<V>>) -> Result<(), Lost>;

    /// Sends a value of the current step. Called by the thread of a device, it must not wait
    /// for the receiver. A device's values must arrive in the end, in whatever order.
    ///
    /// # Errors
    /// The value cannot be sent, which fails the step.
    fn send(&self, to: Address, value: V) -> anyhow::Result<()>;

    /// The step failed here, for this reason: all other processes are to leave it
    /// ([`Door::stop`]).
    fn stop(&self, why: &str);

    /// Waits until all processes have voted, and brings each what all tell. A vote that has come to
    /// its end in one process comes to the same end in all that are not lost, whatever fails next.
    ///
    /// # Errors
    /// A process is lost.
    fn vote(&self, ballot: Ballot) -> Result<Verdict, Lost>;

    /// Waits until all processes have called this, which they do after a vote that failed.
    /// Nothing that was sent before, values and stops, is given to a door after it.
    ///
    /// # Errors
    /// A process is lost.
    fn renew(&self) -> Result<(), Lost>;

    /// Which process this is, by the number that a [`Verdict`] gives it; none where that is not
    /// known. What fails here behind a failure elsewhere is not told then: a stage may have read
    /// what an aborted transfer has left.
    fn rank(&self) -> Option<usize> {
        None
    }

    /// This process cannot go on, so that no other one can: their calls fail from now on, and
    /// a step that is under way is left.
    fn lose(&self, why: &str);
}

/// Where a carrier brings what has arrived for the devices of its process.
pub trait Door<V>: Send + Sync {
    /// A value has arrived.
    ///
    /// # Errors
    /// The program wants no value from another device there.
    fn deliver(&self, to: Address, value: V) -> Result<(), UnwantedValue>;

    /// Another process has failed, or is lost: all devices leave the step.
    fn stop(&self);
}

/// A value arrived that the program does not want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value arrived for slot {} of device {}: the program wants none there from another process", .0.slot, .0.device)]
pub struct UnwantedValue(pub Address);
