//! The processes that a pipeline is spread over, between the steps of its engine.
//!
//! All processes make the same calls in the same order. A call begins with what each of them
//! says it is ([`Ranks::agree_on_call`]), so that a process that does something else is told
//! apart from one that hangs, and what one of them refuses is refused by all. It ends with a
//! vote ([`Ranks::conclude`]): it counts in all processes or in none. What happens between may
//! fail in one process while others wait for what it would have told them; its vote frees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use super::stages::CopyId;
use crate::engine::{Ballot, Carrier, EngineError, Verdict};
use crate::error::{Error, Setting, SettingsError};
use crate::torch::streams::InTransit;
use crate::torch::{TorchError, Values};
use crate::world::{Lost, World, WorldCarrier};

mod clocks;
mod start;

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

/// A question that rides along with every call: whether anybody wants to stop. All hear it in the
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
        let odd = |error: serde_json::Error| {
            TorchError::new(format!("what processes tell each other: {error}"))
        };
        let own = serde_json::to_vec(own).map_err(odd)?;
        let all = self.carrier.gather(&own).map_err(stopped)?;
        let all = all.iter().map(|bytes| serde_json::from_slice(bytes));
        Ok(all.collect::<Result<_, _>>().map_err(odd)?)
    }

    /// All processes begin this call, with these settings, for which they have prepared.
    ///
    /// # Errors
    /// What kept this process from it; that of another one; another call, or other settings,
    /// there.
    pub(super) fn agree_on_call<T>(&self, call: &str, own: Result<T, Error>) -> Result<T, Error> {
        let refused = own.as_ref().err().map(ToString::to_string);
        let asks = self.stop.asks.load(Ordering::SeqCst);
        let all = self.share(&Said {
            call: call.to_owned(),
            refused,
            asks,
        });
        let agreed = all.and_then(|all| {
            if all.iter().any(|said| said.asks) {
                self.stop.heard.store(true, Ordering::SeqCst);
            }
            let other = |said: &Said| said.refused.is_some() || said.call != call;
            let own = own?;
            let Some(rank) = all.iter().position(other) else {
                return Ok(own);
            };
            match &all[rank].refused {
                Some(why) => Err(elsewhere(rank, why.clone())),
                None => Err(self.other_call(call, rank, &all[rank].call)),
            }
        });
        match agreed {
            Ok(own) => Ok(own),
            failed => self.conclude(failed),
        }
    }

    fn other_call(&self, own: &str, rank: usize, other: &str) -> Error {
        let why = format!(
            "rank {rank} calls {other} where rank {} calls {own}: all processes of a pipeline make \
             the same calls, in the same order, with batches of the same size",
            self.world.rank()
        );
        SettingsError::invalid(Setting::World, why).into()
    }

    /// A call has come to its end here. It counts if it has in all processes.
    ///
    /// # Errors
    /// That of this process, or of the one that failed first.
    pub(super) fn conclude<T>(&self, done: Result<T, Error>) -> Result<T, Error> {
        let ballot = match &done {
            Ok(_) => Ballot::Done,
            Err(Error::Engine(EngineError::Lost(_))) => return done,
            Err(Error::Engine(EngineError::Elsewhere { .. })) => Ballot::Left,
            Err(error) => Ballot::Failed(error.to_string()),
        };
        match self.carrier.vote(ballot).map_err(EngineError::from)? {
            Verdict::Done => done,
            Verdict::Failed { rank, why } => {
                self.carrier.renew().map_err(EngineError::from)?;
                done.and_then(|_| Err(elsewhere(rank, why)))
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

/// What a process says of the call that it begins.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    call: String,
    /// What keeps it from it.
    refused: Option<String>,
    /// Whether it wants to stop.
    asks: bool,
}

fn elsewhere(rank: usize, why: String) -> Error {
    EngineError::Elsewhere { rank, why }.into()
}

/// Another process has failed, or is lost.
fn stopped(lost: Lost) -> Error {
    EngineError::from(lost).into()
}
