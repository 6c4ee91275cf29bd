//! Groups: sending tensors between processes.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::keys;
use super::lazy::{Later, Pairs, Way};
use super::local::{Local, LocalWork};
use super::lost::Lost;
use super::watch::Watch;
use crate::{ProcessGroup, TorchError, Work};
use tch::{Device, Kind, Tensor};

/// Longer than any step: an end of the generation frees waiting threads, not a clock.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// Time limit for a live process to finish a transfer that it has begun.
const REST: Duration = Duration::from_mins(1);

/// Rank and host of all processes.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) rank: usize,
    pub(super) hosts: Vec<String>,
}

impl Places {
    /// Describes a rank that is gone.
    pub(super) fn gone(&self, rank: usize, why: String) -> Lost {
        Lost {
            rank: Some(rank),
            host: self.hosts.get(rank).cloned().unwrap_or_default(),
            why,
            gone: true,
            at: 0,
            silent: false,
        }
    }
}

/// All processes of a world, connected with each other.
///
/// A message goes from one rank to another under a tag: messages of different tags do not wait for
/// each other. A message moves once both sides have begun it, so a process deadlocks if it waits
/// for a send before it begins a receive that the other side waits for: begin receives early.
///
/// A group belongs to the world's generation in which it was made; every transfer fails once that
/// generation has ended.
#[derive(Debug)]
pub struct Group {
    pub(super) own: Arc<ProcessGroup>,
    pub(super) watch: Arc<Watch>,
    pub(super) places: Arc<Places>,
    pub(super) generation: u64,
    /// Transport to processes of the same host.
    pub(super) local: Option<Arc<Local>>,
    /// Set if connections are made when first used.
    pub(super) pairs: Option<Arc<Pairs>>,
    pub(super) retired: Arc<Retired>,
}

/// Connections of dropped groups, which another process may still use: closing one early looks like
/// a loss to a process that does not yet know that the generation has ended.
#[derive(Debug, Default)]
pub(super) struct Retired(Mutex<Vec<Connections>>);

type Connections = (Arc<ProcessGroup>, Option<Arc<Local>>);

impl Retired {
    /// Closes them, once all processes have reconnected.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        // Not under the lock: closing takes a while.
        drop(all);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let connections = (Arc::clone(&self.own), self.local.clone());
        self.retired.0.lock().push(connections);
    }
}

impl Group {
    /// Begins to send a tensor; copies it to CPU memory and makes it contiguous if needed. It must
    /// not change before the transfer is done.
    ///
    /// # Errors
    /// The world's generation has ended, or the connection to that rank has.
    ///
    /// # Panics
    /// There is no such other rank.
    pub fn send(&self, tensor: &Tensor, to: usize, tag: u32) -> Result<Transfer, Lost> {
        self.check(to);
        let is_plain = tensor.device() == Device::Cpu && tensor.is_contiguous();
        let tensor = if is_plain && !tensor.requires_grad() {
            tensor.shallow_clone()
        } else {
            tensor.detach().to_device(Device::Cpu).contiguous()
        };
        let local = self.local.as_ref();
        if let Some(work) = local.and_then(|local| local.send(&tensor, to, tag)) {
            return self.begun(work.map(Under::Shared), tensor, to);
        }
        let work = self.work(Way::To(to), &tensor, tag);
        self.begun(work, tensor, to)
    }

    /// Begins to receive a tensor of this shape and kind.
    ///
    /// The message may be shorter; gloo ends the process for a longer one, so sizes must be agreed
    /// on.
    ///
    /// # Errors
    /// The world's generation has ended, or the connection to that rank has.
    ///
    /// # Panics
    /// There is no such other rank.
    pub fn receive(
        &self,
        shape: &[i64],
        kind: Kind,
        from: usize,
        tag: u32,
    ) -> Result<Transfer, Lost> {
        let tensor = Tensor::empty(shape, (kind, Device::Cpu));
        self.receive_into(tensor, from, tag)
    }

    /// Receives into a contiguous CPU tensor.
    pub(super) fn receive_into(
        &self,
        tensor: Tensor,
        from: usize,
        tag: u32,
    ) -> Result<Transfer, Lost> {
        self.check(from);
        let local = self.local.as_ref();
        if let Some(work) = local.and_then(|local| local.receive(&tensor, from, tag)) {
            return self.begun(work.map(Under::Shared), tensor, from);
        }
        let work = self.work(Way::From(from), &tensor, tag);
        self.begun(work, tensor, from)
    }

    fn check(&self, other: usize) {
        let (own, size) = (self.places.rank, self.places.hosts.len());
        assert!(
            other != own && other < size,
            "rank {own} of {size} has no transfer with rank {other}"
        );
    }

    /// Begins a gloo transfer, which an end of the generation frees.
    fn work(&self, way: Way, tensor: &Tensor, tag: u32) -> Result<Under, TorchError> {
        let pairs = self.pairs.as_ref();
        let later = pairs.and_then(|all| all.later(&self.own, way, tensor, tag));
        if let Some(later) = later {
            let id = self
                .watch
                .register(self.generation, Arc::clone(&later) as _);
            return Ok(Under::Later {
                id,
                later,
                _group: Arc::clone(&self.own),
            });
        }
        let work = Arc::new(way.begin(&self.own, tensor, tag)?);
        Ok(Under::Gloo {
            id: self.watch.register(self.generation, Arc::clone(&work) as _),
            work,
            _group: Arc::clone(&self.own),
        })
    }

    fn begun(
        &self,
        work: Result<Under, TorchError>,
        tensor: Tensor,
        peer: usize,
    ) -> Result<Transfer, Lost> {
        let watch = (&*self.watch, self.generation);
        let work = work.map_err(|error| lose(watch, &self.places, peer, &error))?;
        Ok(Transfer {
            work,
            tensor,
            peer,
            generation: self.generation,
            watch: Arc::clone(&self.watch),
            places: Arc::clone(&self.places),
        })
    }
}

/// Reports a failed connection to all, unless another error is known.
fn lose(
    (watch, generation): (&Watch, u64),
    places: &Places,
    peer: usize,
    error: &TorchError,
) -> Lost {
    let (own, said) = (places.rank, keys::said(error));
    let why = format!("its connection to rank {own} failed: {said}");
    watch.ask_in(generation, places.gone(peer, why))
}

/// A message in transit. Dropping it before it is done makes its group unusable.
#[derive(Debug)]
pub struct Transfer {
    work: Under,
    tensor: Tensor,
    peer: usize,
    generation: u64,
    watch: Arc<Watch>,
    places: Arc<Places>,
}

/// Transport of a message.
#[derive(Debug)]
enum Under {
    Gloo {
        id: u64,
        work: Arc<Work>,
        _group: Arc<ProcessGroup>,
    },
    /// By gloo, once the pair is connected.
    Later {
        id: u64,
        later: Arc<Later>,
        _group: Arc<ProcessGroup>,
    },
    /// Through memory shared by both processes.
    Shared(LocalWork),
}

impl Under {
    /// Waits for the end of the transfer. *Returns* whether it is done; after an abort it is not,
    /// unless `past` is set.
    fn wait(&self, at_most: Duration, past: bool) -> Result<bool, TorchError> {
        match self {
            // An abort frees one wait; the transfer goes on.
            Self::Gloo { work, .. } => work.wait(at_most),
            Self::Later { later, .. } => later.wait(at_most, past),
            Self::Shared(work) => work.wait(at_most, past),
        }
    }
}

impl Transfer {
    /// Returns the bytes of the tensor being sent or received.
    pub(super) fn bytes(&self) -> usize {
        self.tensor.numel() * self.tensor.kind().elt_size_in_bytes()
    }

    /// Waits until it is done. *Returns* the tensor received, or for a send the tensor sent.
    ///
    /// # Errors
    /// The first failure, as all processes name it: the connection ended, or the generation.
    pub fn wait(self) -> Result<Tensor, Lost> {
        self.wait_past(&|_| false)
    }

    /// Waits, but continues despite an end of the generation for which `goes_on` returns true: the
    /// other side is then known to do its part, within [`REST`].
    pub(super) fn wait_past(self, goes_on: &dyn Fn(&Lost) -> bool) -> Result<Tensor, Lost> {
        let first = self.work.wait(FOREVER, false);
        let lost = match first {
            Ok(true) => return Ok(self.tensor.shallow_clone()),
            // Only an end of the generation aborts.
            Ok(false) => self.watch.wait_for_end_of(self.generation),
            Err(error) => {
                let watch = (&*self.watch, self.generation);
                return Err(lose(watch, &self.places, self.peer, &error));
            }
        };
        let lost = lost.unwrap_or_else(|| {
            let why = "all have left the world, and this transfer was still under way";
            self.places.gone(self.places.rank, why.to_owned())
        });
        if !goes_on(&lost) {
            return Err(lost);
        }
        match self.work.wait(REST, true) {
            Ok(true) => Ok(self.tensor.shallow_clone()),
            Ok(false) => Err(lost),
            Err(error) => {
                let why = format!("its last word has not come: {}", keys::said(&error));
                Err(self.places.gone(self.peer, why))
            }
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Under::Gloo { id, .. } | Under::Later { id, .. } = self.work {
            self.watch.forget(id);
        }
    }
}
