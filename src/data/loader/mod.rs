//! Batches made ahead of their use, on several threads, in a fixed order.
//!
//! 1. The batching thread walks over the indices of the items in epoch order, and queues those of a
//!    batch as a task for the workers, a few tasks at a time.
//! 2. A worker takes the next task, makes the batch and answers to that task only. The source gathers
//!    the batch in one pass if it can; otherwise each item is written to its row as soon as it is made.
//! 3. The batching thread takes the answers in task order, so that the order of items does not depend
//!    on the workers' speed. It copies a batch to its device and puts it, with the position after it,
//!    into a short queue.
//! 4. The consumer takes a batch, which moves the loader's position past it.
//!
//! If bad items are skipped, the batch with one continues after it, so no later batch of the epoch
//! begins where it was requested. The requests are dropped, and the rest of the epoch is requested in
//! spans of items, which the batching thread stacks to batches.
//!
//! The memory of batches is reused after they are dropped (`src/torch/shim/pool.cpp`).
//!
//! Every queue is bounded, so a slow consumer stops everything before it. When the consumer is dropped,
//! the queues close one after the other and the threads end.

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

/// Batches in order, made by [`Batches::load`].
///
/// After an error there are no more batches, except after [`DataError::Slow`], when the loader keeps
/// waiting. Dropping it ends its threads, each after its current item.
pub struct Loader<B> {
    /// `None` while dropping, and after the end.
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
    /// Tunes the numbers of workers and prefetched batches, if requested.
    tuner: Option<Tuner>,
    /// Start of the tuner's window.
    window: Option<Moment>,
    facts: Facts,
    /// Takes batches from their device copies, if there is a device.
    take: Option<Take<B>>,
}

/// A moment in the life of a loader, from [`Loader::mark`].
#[derive(Debug, Clone, Copy)]
pub struct Mark(Moment);

/// Waiting times of the consumer.
#[derive(Debug, Default)]
struct Waits {
    /// Since the last query.
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
    /// Returns the position after the batches taken so far; prefetched ones do not count.
    /// [`Batches::resume`] continues from there.
    pub fn state(&self) -> Value {
        json!(State {
            data: self.identity.clone(),
            position: self.position,
        })
    }

    /// Returns the epoch of the next batch, from 0.
    pub fn epoch(&self) -> u64 {
        self.position.epoch
    }

    /// Returns the time spent waiting for batches since the last call.
    pub fn waited(&mut self) -> Duration {
        std::mem::take(&mut self.waits.lately)
    }

    /// Returns the share of the time since the first batch spent waiting for batches: above a few
    /// percent, loading limits the speed. Below that, the loader may still take cores from training:
    /// see [`Loader::diagnosis`].
    pub fn wait_share(&self) -> f64 {
        let Some(first) = self.waits.first else {
            return 0.0;
        };
        self.waits.all.as_secs_f64() / first.elapsed().as_secs_f64().max(1e-9)
    }

    /// Diagnoses what has limited training since the first batch, and what would help; `None` before
    /// the second batch. The [share of waiting](Loader::wait_share) is one of its inputs.
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

    /// Returns the measures of [`Loader::diagnosis`].
    pub fn measures(&self) -> Option<InputMeasures> {
        let first = self.seen.first()?;
        let now = self.seen.moment(&self.watch.done());
        self.between(&first, &now)
    }

    /// Returns the present moment, for [`Loader::measures_since`].
    pub fn mark(&self) -> Mark {
        Mark(self.seen.moment(&self.watch.done()))
    }

    /// Returns the measures of [`Loader::diagnosis`] since a moment; `None` if no batch was taken.
    pub fn measures_since(&self, mark: &Mark) -> Option<InputMeasures> {
        self.between(&mark.0, &self.seen.moment(&self.watch.done()))
    }

    /// Lets the tuner evaluate the last batches, if there are enough.
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

    /// Returns the measures between two moments; `None` if no batch was taken.
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

    /// Returns the bad items skipped up to the loader's position.
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

    /// Handles the end: the threads have ended.
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
        // A panic here belongs to a batch that was not requested.
        let _ = self.end();
    }
}
