//! Batches made ahead of their use, on several threads, in one order.
//!
//! 1. The batching thread walks over the numbers of the items, in the order of the
//!    epochs, and puts those of a batch as a task before the workers, a few at a time.
//! 2. A worker takes the next task, makes the batch and answers to that task alone. The
//!    source gathers it in one pass where it can; otherwise each item goes to its row as
//!    soon as it is made, and is not held.
//! 3. The batching thread takes the answers in the order of the tasks, so that the
//!    order of items is the same whichever worker is first. It brings a batch to its device
//!    and puts it, with the position after it, into a queue of few places.
//! 4. The consumer takes a batch, and the loader's position is then the one after it.
//!
//! Where bad items are skipped, the batch that has one goes on behind it, and no later one of
//! the epoch begins where it was asked for. So what was asked for is given up, and the rest of
//! the epoch is asked for in spans of items, which the batching thread makes batches of.
//!
//! Batches lie in memory that is used again once nobody holds them (`src/torch/shim/pool.cpp`).
//!
//! Every queue is bounded, so a slow consumer stops everything before it. When the
//! consumer goes, the queues close one after the other and the threads end.

mod assembly;
mod bringing;
mod builder;
mod making;
mod position;
mod work;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use serde_json::{Value, json};

use super::DataError;

pub use builder::Batches;

pub(super) use making::Making;

use assembly::Ready;
use bringing::Take;
use position::{Position, State};
use work::Watch;

/// Batches in order: what [`Batches::load`] gives.
///
/// After an error there are no more batches, but for [`DataError::Slow`], after which
/// the loader goes on waiting. Dropping it ends its threads, each after the item that it
/// is at.
pub struct Loader<B> {
    /// None while it is dropped, and after the end.
    batches: Option<Receiver<Ready<B>>>,
    threads: Vec<JoinHandle<()>>,
    watch: Arc<dyn Watch>,
    identity: String,
    position: Position,
    patience: Option<Duration>,
    /// Whether a thread was found to hang.
    hangs: bool,
    skipped: Vec<DataError>,
    waits: Waits,
    /// Where batches are brought to a device.
    take: Option<Take<B>>,
}

/// How long the consumer waited.
#[derive(Debug, Default)]
struct Waits {
    /// Since it was last asked for.
    lately: Duration,
    /// Since the first batch.
    all: Duration,
    first: Option<Instant>,
}

impl<B> fmt::Debug for Loader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("identity", &self.identity)
            .field("position", &self.position)
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl<B> Loader<B> {
    /// Where it stands, after the batches that were taken: what was made ahead does not
    /// count. [`Batches::resume`] goes on from there.
    pub fn state(&self) -> Value {
        json!(State {
            data: self.identity.clone(),
            position: self.position,
        })
    }

    /// The epoch of the next batch, from 0.
    pub fn epoch(&self) -> u64 {
        self.position.epoch
    }

    /// How long batches were waited for since the last call of this.
    pub fn waited(&mut self) -> Duration {
        std::mem::take(&mut self.waits.lately)
    }

    /// The share of the time since the first batch came in which batches were waited
    /// for: above a few percent it is loading that limits the speed.
    pub fn wait_share(&self) -> f64 {
        let Some(first) = self.waits.first else {
            return 0.0;
        };
        self.waits.all.as_secs_f64() / first.elapsed().as_secs_f64().max(1e-9)
    }

    /// The bad items that were skipped on the way to where the loader stands.
    pub fn skipped(&self) -> &[DataError] {
        &self.skipped
    }

    fn receive(&mut self) -> Option<Ready<B>> {
        let batches = self.batches.as_ref()?;
        let start = Instant::now();
        let ready = match self.patience {
            None => batches.recv().ok(),
            Some(patience) => match batches.recv_timeout(patience) {
                Ok(ready) => Some(ready),
                Err(RecvTimeoutError::Disconnected) => None,
                Err(RecvTimeoutError::Timeout) => Some(Ready::Slow(start.elapsed())),
            },
        };
        let waited = start.elapsed();
        self.waits.lately += waited;
        if self.waits.first.is_some() {
            self.waits.all += waited;
        }
        ready
    }

    /// Nothing more comes: the threads are at their end.
    fn end(&mut self) -> Option<DataError> {
        self.batches = None;
        let threads = std::mem::take(&mut self.threads);
        if self.hangs {
            return None;
        }
        let ended = threads.into_iter().map(JoinHandle::join);
        let panics = ended.filter_map(Result::err);
        let first = panics.into_iter().next()?;
        Some(DataError::Lost(crate::engine::panics::panic_message(
            &*first,
        )))
    }
}

impl<B> Iterator for Loader<B> {
    type Item = Result<B, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.as_ref()?;
        match self.receive() {
            Some(Ready::Batch {
                batch,
                arrived,
                after,
                skipped,
            }) => {
                self.hangs = false;
                self.position = after;
                self.skipped.extend(skipped);
                self.waits.first.get_or_insert_with(Instant::now);
                let taken = match (&self.take, arrived) {
                    (Some(take), Some(arrived)) => take(batch, &arrived),
                    _ => Ok(batch),
                };
                Some(taken.map_err(|error| {
                    self.end();
                    DataError::Device(error)
                }))
            }
            Some(Ready::Failed(error)) => {
                self.end();
                Some(Err(error))
            }
            Some(Ready::Ended(skipped)) => {
                self.skipped.extend(skipped);
                self.end().map(Err)
            }
            Some(Ready::Slow(waited)) => {
                self.hangs = true;
                let place = self.watch.waiting_for();
                Some(Err(DataError::Slow { place, waited }))
            }
            None => self.end().map(Err),
        }
    }
}

impl<B> Drop for Loader<B> {
    fn drop(&mut self) {
        self.watch.stop();
        // A panic here belongs to a batch that nobody asked for.
        let _ = self.end();
    }
}
