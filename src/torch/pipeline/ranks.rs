//! The processes that a pipeline is spread over, between the engine's steps.
//!
//! All processes make the same calls in the same order. A call begins with its name
//! ([`Ranks::begin_call`]), without waiting: the carrier compares it with the names from the
//! others, so that a process in another call is told apart from one that hangs. A call ends with a
//! vote ([`Ranks::conclude`], or that of the engine's step): it counts in all processes or in none,
//! and an error in one is an error in all. In between, one process may fail while others wait for
//! its messages; its vote frees them. A vote also carries data between the processes, so that most
//! calls need no other round of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpipe_partitioner::StageId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Tensor};

use crate::error::Error;
use crate::streams::InTransit;
use crate::world::{Lost, World, WorldCarrier};
use crate::{TorchError, Values};
use gpipe_engine::{Ballot, Carrier, EngineError, Verdict};

mod clocks;
mod handshake;
mod replica_exchange;

pub(super) use clocks::Clock;
pub(super) use handshake::Members;
pub(super) use replica_exchange::Given;

/// Upper limit of a value's size, in bytes: a header with more is corrupt.
const LARGEST: u64 = 1 << 40;

/// A stage in one of the replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::pipeline) struct CopyId {
    pub(in crate::pipeline) stage: StageId,
    pub(in crate::pipeline) replica: usize,
}

impl CopyId {}

/// The processes of a pipeline, from the view of the calling thread of one of them.
#[derive(Debug)]
pub(super) struct Ranks {
    world: Arc<World>,
    carrier: Arc<WorldCarrier<InTransit>>,
    /// Rank of each copy, by stage, then by replica.
    of_copies: Vec<Vec<usize>>,
    clock: Clock,
    stop: Arc<StopLine>,
}

/// A request to stop that is sent with every vote. All processes learn of it in the same call.
#[derive(Debug, Default)]
pub struct StopLine {
    asks: AtomicBool,
    heard: AtomicBool,
}

impl StopLine {
    /// Sets this process's request, from the next call on. *Returns* whether all have received a
    /// request.
    pub fn ask(&self, asks: bool) -> bool {
        self.asks.store(asks, Ordering::SeqCst);
        self.heard.load(Ordering::SeqCst)
    }

    /// Clears the request. All processes do this between the same calls.
    pub fn clear(&self) {
        self.asks.store(false, Ordering::SeqCst);
        self.heard.store(false, Ordering::SeqCst);
    }
}

impl Ranks {
    /// Connects the processes that have these devices and thereby the stages; `gpus` are the CUDA
    /// devices of local stages. All processes call this.
    ///
    /// # Errors
    /// A process is lost.
    pub(super) fn connect(
        world: &Arc<World>,
        (of_device, gpus): (Vec<usize>, &[Option<usize>]),
        of_copies: Vec<Vec<usize>>,
    ) -> Result<Self, Error> {
        let carrier = WorldCarrier::connect_gpus(world, of_device, LARGEST, gpus);
        let carrier = carrier.map_err(stopped)?;
        let clock = Clock::compare(&carrier, world.rank(), world.size()).map_err(stopped)?;
        Ok(Self {
            world: Arc::clone(world),
            carrier: Arc::new(carrier),
            of_copies,
            clock,
            stop: Arc::default(),
        })
    }

    /// Recovers after a failure that all processes know of.
    pub(super) fn renew(&self) -> Result<(), Error> {
        Ok(self.carrier.renew().map_err(EngineError::from)?)
    }

    pub(super) fn carrier(&self) -> Arc<dyn Carrier<InTransit>> {
        Arc::<WorldCarrier<InTransit>>::clone(&self.carrier)
    }

    pub(super) fn stop_line(&self) -> &Arc<StopLine> {
        &self.stop
    }

    pub(super) fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    fn rank_of(&self, CopyId { stage, replica }: CopyId) -> usize {
        self.of_copies[stage.index()][replica]
    }

    /// Gathers a value from each process, in the order of ranks.
    ///
    /// # Errors
    /// Another process failed, or is lost.
    pub(super) fn share<T: Serialize + DeserializeOwned>(&self, own: &T) -> Result<Vec<T>, Error> {
        let all = self.carrier.gather(&written(own)?).map_err(stopped)?;
        all.iter().map(|told| read(told)).collect()
    }

    /// Begins a call in this process after its preparation; does not wait for the others.
    ///
    /// # Errors
    /// A failed preparation, which is sent to all.
    pub(super) fn begin_call<T>(&self, call: &str, own: Result<T, Error>) -> Result<T, Error> {
        self.carrier.begin_call(call);
        match own {
            Ok(own) => Ok(own),
            refused => self.conclude(refused),
        }
    }

    /// Begins a call in all processes after their preparation.
    ///
    /// # Errors
    /// A failed preparation, here or in another process; a different call there.
    pub(super) fn agree_on_call<T>(&self, call: &str, own: Result<T, Error>) -> Result<T, Error> {
        self.carrier.begin_call(call);
        self.conclude(own)
    }

    /// Encodes this process's part of a vote, with the request to stop.
    pub(super) fn tell(&self, told: &[u8]) -> Vec<u8> {
        let asks = self.stop.asks.load(Ordering::SeqCst);
        [&[u8::from(asks)], told].concat()
    }

    /// Decodes the parts of all processes in a vote.
    pub(super) fn hear(&self, told: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let parts = told
            .iter()
            .map(|all| all.split_first().unwrap_or((&0, &[])));
        let (asks, told): (Vec<u8>, Vec<_>) =
            parts.map(|(asks, own)| (*asks, own.to_vec())).unzip();
        if asks.contains(&1) {
            self.stop.heard.store(true, Ordering::SeqCst);
        }
        told
    }

    /// Ends a call in this process. It counts if it succeeded in all processes.
    ///
    /// # Errors
    /// That of this process, or of the one that failed first.
    pub(super) fn conclude<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        let (done, _) = self.conclude_telling(done.map(|done| (done, Vec::new())))?;
        Ok(done)
    }

    /// Does the same, and exchanges a message from each process, in the order of ranks.
    ///
    /// # Errors
    /// Those of [`Ranks::conclude`].
    pub(super) fn conclude_telling<T>(
        &self,
        done: Result<(T, Vec<u8>), Error>,
    ) -> Result<(T, Vec<Vec<u8>>), Error> {
        let ballot = match &done {
            Ok((_, told)) => Ballot::Done(self.tell(told)),
            Err(Error::Engine(EngineError::Lost(lost))) => {
                return Err(EngineError::Lost(lost.clone()).into());
            }
            Err(Error::Engine(EngineError::Elsewhere { .. })) => Ballot::Left,
            Err(error) => Ballot::Failed(error.to_string()),
        };
        let done = done.map(|(done, _)| done);
        match self.carrier.vote(ballot).map_err(EngineError::from)? {
            Verdict::Done(told) => Ok((done?, self.hear(&told))),
            Verdict::Failed { rank, why } => {
                self.carrier.renew().map_err(EngineError::from)?;
                Err(done.err().unwrap_or_else(|| elsewhere(rank, why)))
            }
        }
    }

    /// Gives up all processes: this one cannot follow what the others have done.
    pub(super) fn lose(&self, why: &Error) {
        self.carrier.lose(&why.to_string());
    }

    /// Sends a tensor, which may be absent, from the process of one stage to that of another. Only
    /// these two call this. *Returns* it where it has arrived.
    ///
    /// # Errors
    /// One of them failed, or is lost.
    pub(super) fn carry(
        &self,
        tensor: Option<&Tensor>,
        from: CopyId,
        to: CopyId,
    ) -> Result<Option<Tensor>, Error> {
        let (from, to) = (self.rank_of(from), self.rank_of(to));
        if from != self.world.rank() {
            let values = self.carrier.take(from).map_err(stopped)?;
            return Ok(values.into_iter().next().flatten());
        }
        // The receiver's own tensors determine what requires a gradient.
        let plain = tensor.map(|own| own.f_detach()?.f_to_device(Device::Cpu));
        let plain = plain.transpose()?;
        let values = Values::from_iter([plain]);
        self.give(&values, to).map(|()| None)
    }

    fn give(&self, values: &Values, to: usize) -> Result<(), Error> {
        let handed = self.carrier.hand(values, to);
        handed.map_err(|error| match error.downcast::<Lost>() {
            Ok(lost) => stopped(lost),
            Err(error) => Error::Torch(TorchError::new(format!("{error:#}"))),
        })
    }

    /// Sends values from the process of one stage to host memory in all others. All processes call
    /// this, and all return the values.
    ///
    /// # Errors
    /// One of them failed, or is lost.
    pub(super) fn broadcast(&self, own: Values, from: CopyId) -> Result<Values, Error> {
        let from = self.rank_of(from);
        if from != self.world.rank() {
            return self.carrier.take(from).map_err(stopped);
        }
        let by_host = own.shallow_clone();
        let by_host = by_host.try_map(|own| own.f_detach()?.f_to_device(Device::Cpu))?;
        let others = (0..self.world.size()).filter(|rank| *rank != from);
        for rank in others {
            self.give(&by_host, rank)?;
        }
        Ok(own)
    }
}

/// Encodes a message to other processes.
pub(super) fn written(told: &impl Serialize) -> Result<Vec<u8>, Error> {
    Ok(serde_json::to_vec(told).map_err(odd)?)
}

/// Decodes a message from another process.
pub(super) fn read<T: DeserializeOwned>(told: &[u8]) -> Result<T, Error> {
    Ok(serde_json::from_slice(told).map_err(odd)?)
}

fn odd(error: impl std::fmt::Display) -> TorchError {
    TorchError::new(format!("what processes tell each other: {error}"))
}

fn elsewhere(rank: usize, why: String) -> Error {
    EngineError::Elsewhere { rank, why }.into()
}

/// Converts the failure or loss of another process.
fn stopped(lost: Lost) -> Error {
    EngineError::from(lost).into()
}
