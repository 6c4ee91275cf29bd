//! The processes that write and read checkpoints together: what each has done comes to rank 0,
//! and what rank 0 decides goes to all, so that all return the same.
//!
//! What is said here goes over the world's [control messages](gpipe_torch::world::Control), never over
//! the groups that training uses, and from any one thread at a time. All processes must go through
//! the same [`collect`](Together::collect) and [`tell`](Together::tell) in the same order. A single
//! process has nobody to tell: its own results, and its errors, are returned as they are.

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
    /// Which of those that this world has had.
    number: u64,
    /// What has been said so far.
    rounds: AtomicU64,
}

impl Together {
    /// A process by itself.
    pub(super) fn alone() -> Self {
        Self::default()
    }

    /// All processes of a world: all must call this, in the same order.
    ///
    /// # Errors
    /// Somebody is lost.
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

    /// The host of a rank.
    pub(super) fn host(&self, rank: usize) -> String {
        let peers = self.peers.as_ref();
        peers.map_or_else(String::new, |own| own.control.host(rank).to_owned())
    }

    /// Has this process not end by another one's failure while the result lives.
    pub(super) fn hold(&self) -> Option<Held> {
        self.peers.as_ref().map(|own| own.control.hold())
    }

    /// Brings what each process has done to rank 0 (a gather). Nobody else waits.
    ///
    /// *Returns* in rank 0 what all have done, by rank; elsewhere nothing.
    ///
    /// # Errors
    /// In rank 0: that of the lowest rank which has failed, once all have said how they did; or
    /// somebody is lost.
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

    /// Has rank 0 do something, and tells all what came of it (a broadcast). The others wait.
    ///
    /// # Errors
    /// Those of rank 0; or somebody is lost.
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

    /// The same, of what each process has done: all return the first error, or nothing.
    ///
    /// # Errors
    /// That of the lowest rank which has failed; or somebody is lost.
    pub(super) fn agree(&self, own: Result<(), CheckpointError>) -> Result<(), CheckpointError> {
        let all = self.collect(own);
        self.tell(|| all.map(drop))
    }

    /// An error of this process's, as all processes name it.
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
