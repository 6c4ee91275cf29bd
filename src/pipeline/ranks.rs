//! The processes that a pipeline is spread over, between the steps of its engine.
//!
//! All processes make the same calls in the same order. A call begins with its name
//! ([`Ranks::begin_call`]), for which nobody waits: the carrier compares it with those of the others,
//! so that a process that does something else is told apart from one that hangs. It ends with a vote
//! ([`Ranks::conclude`], or that of the engine's step): it counts in all processes or in none, and
//! what one of them refuses is refused by all. What happens between may fail in one process while
//! others wait for what it would have told them; its vote frees them. A vote carries what the
//! processes have to tell each other, so that most calls have no other round of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Tensor};

use super::stages::CopyId;
use crate::engine::{Ballot, Carrier, EngineError, Verdict};
use crate::error::Error;
use crate::torch::streams::InTransit;
use crate::torch::{TorchError, Values};
use crate::world::{Lost, World, WorldCarrier};

mod clocks;
mod start;
mod swap;

pub(super) use clocks::Clock;
pub(super) use start::Members;

/// What no value of a pipeline comes near, in bytes: a header that says more is spoilt.
const LARGEST: u64 = 1 << 40;

/// The processes of a pipeline, as the calling thread of one of them sees them.
#[derive(Debug)]
pub(super) struct Ranks {
    world: Arc<World>,
    carrier: Arc<WorldCarrier<InTransit>>,
    /// By stage, then by replica: whose the copy is.
    of_copies: Vec<Vec<usize>>,
    clock: Clock,
    stop: Arc<StopLine>,
}

/// A question that rides along with every vote: whether anybody wants to stop. All hear it in the
/// same call.
#[derive(Debug, Default)]
pub(crate) struct StopLine {
    asks: AtomicBool,
    heard: AtomicBool,
}

impl StopLine {
    /// This process asks, from the next call on. *Returns* whether all have heard of somebody who
    /// does.
    pub(crate) fn ask(&self, asks: bool) -> bool {
        self.asks.store(asks, Ordering::SeqCst);
        self.heard.load(Ordering::SeqCst)
    }

    /// Nobody has asked yet. All processes do this between the same calls.
    pub(crate) fn clear(&self) {
        self.asks.store(false, Ordering::SeqCst);
        self.heard.store(false, Ordering::SeqCst);
    }
}

impl Ranks {
    /// Of the processes that have these devices, which have the stages; `gpus` are the CUDA devices
    /// of those that are here. All call this.
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

    /// After a failure that all have heard of.
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

    /// What each process gives, in the order of ranks.
    ///
    /// # Errors
    /// Another process has failed, or is lost.
    pub(super) fn share<T: Serialize + DeserializeOwned>(&self, own: &T) -> Result<Vec<T>, Error> {
        let all = self.carrier.gather(&written(own)?).map_err(stopped)?;
        all.iter().map(|told| read(told)).collect()
    }

    /// This process begins a call, for which it has prepared; it does not wait for the others.
    ///
    /// # Errors
    /// What kept this process from it, which all are told.
    pub(super) fn begin_call<T>(&self, call: &str, own: Result<T, Error>) -> Result<T, Error> {
        self.carrier.begin_call(call);
        match own {
            Ok(own) => Ok(own),
            refused => self.conclude(refused),
        }
    }

    /// All processes begin this call, for which they have prepared.
    ///
    /// # Errors
    /// What kept this process from it; that of another one; another call there.
    pub(super) fn agree_on_call<T>(&self, call: &str, own: Result<T, Error>) -> Result<T, Error> {
        self.carrier.begin_call(call);
        self.conclude(own)
    }

    /// What this process tells in a vote, with what rides along.
    pub(super) fn tell(&self, told: &[u8]) -> Vec<u8> {
        let asks = self.stop.asks.load(Ordering::SeqCst);
        [&[u8::from(asks)], told].concat()
    }

    /// What all have told in a vote.
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

    /// A call has come to its end here. It counts if it has in all processes.
    ///
    /// # Errors
    /// That of this process, or of the one that failed first.
    pub(super) fn conclude<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        let (done, _) = self.conclude_telling(done.map(|done| (done, Vec::new())))?;
        Ok(done)
    }

    /// The same, with what each process tells the others, in the order of ranks.
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

    /// What the other processes have done cannot be done here: nobody goes on.
    pub(super) fn lose(&self, why: &Error) {
        self.carrier.lose(&why.to_string());
    }

    /// Takes a tensor, which may be absent, from the process of one stage to that of another
    /// one. Only these two call this. *Returns* it where it has arrived.
    ///
    /// # Errors
    /// One of them fails, or is lost.
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
        // The receiver's own tensors say what requires a gradient.
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

    /// Takes what the process of one stage has to all others, to the host's memory there. All call
    /// this, and all return it.
    ///
    /// # Errors
    /// One of them fails, or is lost.
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

/// What a process tells the others.
pub(super) fn written(told: &impl Serialize) -> Result<Vec<u8>, Error> {
    Ok(serde_json::to_vec(told).map_err(odd)?)
}

/// What another process has told.
pub(super) fn read<T: DeserializeOwned>(told: &[u8]) -> Result<T, Error> {
    Ok(serde_json::from_slice(told).map_err(odd)?)
}

fn odd(error: impl std::fmt::Display) -> TorchError {
    TorchError::new(format!("what processes tell each other: {error}"))
}

fn elsewhere(rank: usize, why: String) -> Error {
    EngineError::Elsewhere { rank, why }.into()
}

/// Another process has failed, or is lost.
fn stopped(lost: Lost) -> Error {
    EngineError::from(lost).into()
}
