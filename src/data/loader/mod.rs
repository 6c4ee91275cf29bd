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
mod how_many;
mod making;
mod pace;
mod position;
mod tuner;
mod watching;
mod weight;
mod work;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use serde_json::{Value, json};

use super::{DataError, Diagnosis, InputMeasures};

pub use builder::Batches;
pub use how_many::HowMany;

pub(super) use making::Making;

use assembly::Ready;
use bringing::Take;
use position::{Position, State};
use tuner::{Tuner, WINDOW};
use watching::{Facts, Moment, Seen};
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
    seen: Seen,
    /// Where it is found how many workers and batches ahead there are.
    tuner: Option<Tuner>,
    /// Since when the tuner looks.
    window: Option<Moment>,
    facts: Facts,
    /// Where batches are brought to a device.
    take: Option<Take<B>>,
}

/// A moment in the life of a loader, which [`Loader::mark`] gives.
#[derive(Debug, Clone, Copy)]
pub struct Mark(Moment);

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
    /// for: above a few percent it is loading that limits the speed. Below, the loader may still
    /// take cores from the training: [`Loader::diagnosis`] tells.
    pub fn wait_share(&self) -> f64 {
        let Some(first) = self.waits.first else {
            return 0.0;
        };
        self.waits.all.as_secs_f64() / first.elapsed().as_secs_f64().max(1e-9)
    }

    /// What held the training back since the first batch came, and what would help; none before
    /// the second batch. The [share that was waited](Loader::wait_share) is one of the numbers that
    /// it is concluded from.
    ///
    /// ```
    /// use gpipe::data::{Dataset, Made};
    ///
    /// let mut loader = Dataset::new(Made::new(100, |number| Ok(number as i64))).batch(10).load()?;
    /// while let Some(batch) = loader.next() {
    ///     let _ = batch?; // training
    /// }
    /// println!("{}", loader.diagnosis().expect("ten batches"));
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        Some(Diagnosis::of(&self.measures()?))
    }

    /// The numbers of [`Loader::diagnosis`] alone.
    pub fn measures(&self) -> Option<InputMeasures> {
        let first = self.seen.first()?;
        let now = self.seen.moment(&self.watch.done());
        self.between(&first, &now)
    }

    /// This moment, for [`Loader::measures_since`].
    pub fn mark(&self) -> Mark {
        Mark(self.seen.moment(&self.watch.done()))
    }

    /// The numbers of [`Loader::diagnosis`] for what happened since a moment; none where no batch
    /// was taken.
    pub fn measures_since(&self, mark: &Mark) -> Option<InputMeasures> {
        self.between(&mark.0, &self.seen.moment(&self.watch.done()))
    }

    /// Has the tuner look at the last batches, where there are enough.
    fn tune(&mut self) {
        let Some(mut tuner) = self.tuner.take() else {
            return;
        };
        let pace = self.watch.pace();
        pace.taken();
        let from = self.window.or_else(|| self.seen.first());
        let due = from.is_some_and(|from| self.seen.since(&from) >= WINDOW.0);
        if due {
            let now = self.seen.moment(&self.watch.done());
            let window = from.and_then(|from| self.between(&from, &now));
            let long = |own: &InputMeasures| own.period_ms * own.batches as f64 >= WINDOW.1;
            if let Some(window) = window.filter(long) {
                let way = tuner.next(&window);
                self.watch.pace().set(way.workers, way.ahead);
                self.window = Some(now);
            }
        }
        self.tuner = Some(tuner);
    }

    /// What happened between two moments; none where that was nothing.
    fn between(&self, from: &Moment, to: &Moment) -> Option<InputMeasures> {
        if to.taken <= from.taken {
            return None;
        }
        let batch_bytes = self.watch.batch_bytes();
        let batches = |items: usize| items.div_ceil(self.facts.size) as u64;
        let epoch = self.facts.again.map(batches);
        let epoch_bytes = epoch.zip(batch_bytes);
        Some(InputMeasures {
            workers: self.watch.pace().active(),
            prefetch: self.watch.pace().ahead(),
            intra_op: usize::try_from(tch::get_num_threads()).unwrap_or(1),
            batch_bytes,
            epoch_bytes: epoch_bytes.and_then(|(batches, bytes)| batches.checked_mul(bytes)),
            free_bytes: self.facts.free,
            ..self.seen.measures(from, to, &self.facts)
        })
    }

    /// The bad items that were skipped on the way to where the loader stands.
    pub fn skipped(&self) -> &[DataError] {
        &self.skipped
    }

    fn receive(&mut self) -> Option<Ready<B>> {
        let batches = self.batches.as_ref()?;
        self.seen.asked(self.watch.pace(), batches.len());
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
        if matches!(ready, Some(Ready::Batch { .. })) {
            self.seen
                .gives(self.watch.pace(), waited, || self.watch.done());
        }
        if self.waits.first.is_some() {
            self.waits.all += waited;
        }
        ready
    }

    /// Nothing more comes: the threads are at their end.
    fn end(&mut self) -> Option<DataError> {
        self.batches = None;
        self.watch.stop();
        let threads = std::mem::take(&mut self.threads);
        if self.hangs {
            return None;
        }
        let ended = threads.into_iter().map(JoinHandle::join);
        let panics = ended.filter_map(Result::err);
        let first = panics.into_iter().next()?;
        Some(DataError::Lost(gpipe_engine::panics::panic_message(
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
                self.tune();
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
