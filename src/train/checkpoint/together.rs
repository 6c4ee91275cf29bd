//! Processes that write and read checkpoints together: their results are sent to rank 0, and its
//! decisions to all, so that all return the same.
//!
//! Messages use the world's [control messages](gpipe_torch::world::Control), never the groups used by
//! training, and only one thread at a time. All processes must make the same calls of
//! [`collect`](Together::collect) and [`tell`](Together::tell) in the same order. A single process
//! returns its own results and errors directly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::CheckpointError;
use super::told::{self, Told};
use gpipe_torch::world::{Control, Held, World};

/// This process, and those that it writes or reads with.
#[derive(Debug, Clone, Default)]
pub(super) struct Together {
    peers: Option<Arc<Peers>>,
}

#[derive(Debug)]
struct Peers {
    control: Arc<Control>,
    /// Sequence number of this group in its world.
    number: u64,
    /// Number of messages so far.
    rounds: AtomicU64,
}

impl Together {
    /// Makes a single process.
    pub(super) fn alone() -> Self {
        Self::default()
    }

    /// Makes a group of all processes of a world; all must call this, in the same order.
    ///
    /// # Errors
    /// A process is lost.
    pub(super) fn all(world: &World) -> Result<Self, CheckpointError> {
        let peers = world.control()?.map(|control| Peers {
            number: control.number(),
            control,
            rounds: AtomicU64::new(0),
        });
        Ok(Self {
            peers: peers.map(Arc::new),
        })
    }

    pub(super) fn is_alone(&self) -> bool {
        self.peers.is_none()
    }

    pub(super) fn rank(&self) -> usize {
        self.peers.as_ref().map_or(0, |own| own.control.rank())
    }

    pub(super) fn size(&self) -> usize {
        self.peers.as_ref().map_or(1, |own| own.control.size())
    }

    /// Whether this process decides.
    pub(super) fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Returns the host of a rank.
    pub(super) fn host(&self, rank: usize) -> String {
        let peers = self.peers.as_ref();
        peers.map_or_else(String::new, |own| own.control.host(rank).to_owned())
    }

    /// Keeps this process alive on another one's failure while the result lives.
    pub(super) fn hold(&self) -> Option<Held> {
        self.peers.as_ref().map(|own| own.control.hold())
    }

    /// Sends each process's result to rank 0 (a gather). Only rank 0 waits.
    ///
    /// *Returns* all results by rank in rank 0; elsewhere nothing.
    ///
    /// # Errors
    /// In rank 0, the error of the lowest failed rank, once all have reported; or a process is lost.
    pub(super) fn collect<T: Serialize + DeserializeOwned>(
        &self,
        own: Result<T, CheckpointError>,
    ) -> Result<Vec<T>, CheckpointError> {
        let Some(peers) = &self.peers else {
            return own.map(|own| vec![own]);
        };
        let topic = peers.topic();
        let own = own.map_err(|error| self.of(error));
        if !self.leads() {
            peers.control.send(0, &topic, told::written(own.as_ref()));
            return Ok(Vec::new());
        }
        let mut all = vec![(0, own)];
        while all.len() < self.size() {
            let (rank, text) = peers.control.receive(&topic)?;
            all.push((rank, told::read(&text)));
        }
        all.sort_by_key(|(rank, _)| *rank);
        all.into_iter().map(|(_, one)| one).collect()
    }

    /// Runs a function in rank 0, and sends its result to all (a broadcast). The others wait.
    ///
    /// # Errors
    /// The error of rank 0, or a process is lost.
    pub(super) fn tell<T: Serialize + DeserializeOwned>(
        &self,
        made: impl FnOnce() -> Result<T, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        let Some(peers) = &self.peers else {
            return made();
        };
        let topic = peers.topic();
        if !self.leads() {
            let (_, text) = peers.control.receive(&topic)?;
            return told::read(&text);
        }
        let made = made().map_err(|error| self.of(error));
        let text = told::written(made.as_ref());
        for rank in 1..self.size() {
            peers.control.send(rank, &topic, text.clone());
        }
        made
    }

    /// Returns the first error of all processes, if any, in all.
    ///
    /// # Errors
    /// The error of the lowest failed rank, or a process is lost.
    pub(super) fn agree(&self, own: Result<(), CheckpointError>) -> Result<(), CheckpointError> {
        let all = self.collect(own);
        self.tell(|| all.map(drop))
    }

    /// Converts an error of this process to the form in which all return it.
    fn of(&self, error: CheckpointError) -> CheckpointError {
        Told::of(error, self.rank(), self.host(self.rank()))
    }
}

impl Peers {
    fn topic(&self) -> String {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        format!("checkpoint/{}/{round}", self.number)
    }
}
