//! Assembles batches in order, from workers' batches and from items.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::bringing::Bring;
use super::position::{Position, Span, Spans};
use super::weight::bytes_of;
use super::work::{Answer, Shared, Task};
use crate::diagnosis::clock::Ticks;
use crate::diagnosis::ledger::DelayReader;
use crate::diagnosis::phase::Sampling;
use crate::{DataError, Phase, Place, Source};
use gpipe_torch::caught;
use gpipe_torch::streams::Event;

/// A message to the consumer.
#[derive(Debug)]
pub(super) enum Ready<B> {
    Batch {
        batch: B,
        /// The copy's completion, if the batch was copied to a device.
        arrived: Option<Event>,
        /// The loader's position after this batch.
        after: Position,
        /// Bad items before this batch.
        skipped: Vec<DataError>,
    },
    Failed(DataError),
    /// The end, with bad items after the last batch.
    Ended(Vec<DataError>),
    /// No batch came within the consumer's patience.
    Slow(Duration),
}

/// One batch in this many is weighed.
const WEIGHED: u64 = 64;
/// A large block is allocated once per this many batches. Each task has its own channel, whose blocks
/// other threads free. glibc coalesces small blocks only when its heap of 64 MiB is used up, or when a
/// large block is requested, which this thread otherwise never does; and a single block of a channel is
/// too small for the next channel. Memory would grow by a kilobyte per batch.
const TIDIED: u64 = 16;
/// Larger than glibc's threshold of large blocks.
const LARGE: usize = 1 << 13;

/// State of the batching thread.
pub(super) struct Assembly<S: Source, B> {
    pub(super) shared: Arc<Shared<S, B>>,
    pub(super) spans: Spans,
    pub(super) tasks: Sender<Task<S::Item, B>>,
    pub(super) bring: Option<Bring<B>>,
    pub(super) ready: Sender<Ready<B>>,
    pub(super) size: usize,
    pub(super) drop_last: bool,
    /// Number of bad items per epoch that may be skipped.
    pub(super) allowed: u64,
    /// Number of outstanding tasks if they are spans of a batch.
    pub(super) spans_out: usize,
    /// Whether the number of prefetched batches may change.
    pub(super) waits_for_room: bool,
    pub(super) position: Position,
    /// Whether the epoch gave a batch, or began before the loader.
    pub(super) gave: bool,
    /// Number of batches made.
    pub(super) batches: u64,
    pub(super) delays: DelayReader,
}

/// The reason why the batching thread ends early.
enum Stop {
    Failed(DataError),
    /// The consumer is gone.
    Gone,
}

/// The batch being assembled.
struct Batch<T> {
    items: Vec<T>,
    first: Option<Place>,
    skipped: Vec<DataError>,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            first: None,
            skipped: Vec::new(),
        }
    }
}

/// An outstanding span, and the channel of its answer.
type Awaited<T, B> = (Span, Receiver<Answer<T, B>>);

impl<S: Source, B: Send + 'static> Assembly<S, B> {
    /// Makes batches until the epochs end or the consumer is gone.
    pub(super) fn run(mut self) {
        self.shared.use_memory();
        // It must be created on the thread that it measures.
        self.delays = DelayReader::new();
        let last = match self.batches() {
            Ok(skipped) => Ready::Ended(skipped),
            Err(Stop::Failed(error)) => {
                self.shared.give_up();
                Ready::Failed(error)
            }
            Err(Stop::Gone) => return,
        };
        // If the consumer is gone, there is nobody to notify.
        let _ = self.ready.send(last);
    }

    /// Makes all batches; returns the bad items after the last.
    fn batches(&mut self) -> Result<Vec<DataError>, Stop> {
        let mut awaited: VecDeque<Awaited<_, _>> = VecDeque::new();
        let mut batch = Batch::default();
        loop {
            while awaited.len() < self.most_out()
                && let Some(span) = self.spans.next()
            {
                awaited.push_back((span, self.ask(span)?));
            }
            let Some((span, answer)) = awaited.pop_front() else {
                return Ok(batch.skipped);
            };
            // A worker that ends without an answer was told to stop.
            match answer.recv().map_err(|_| Stop::Gone)? {
                Answer::Items(items) => batch = self.add(span, items, batch)?,
                Answer::Batch(made) => self.add_batch(span, made, &mut batch)?,
                Answer::Unfit(source) => {
                    let first = self.shared.place(span.epoch, span.first);
                    return Err(Stop::Failed(DataError::Batch { first, source }));
                }
                Answer::Bad(error) if self.allowed == 0 => return Err(Stop::Failed(error)),
                // The batch continues after the bad item, so later batches of the epoch begin
                // elsewhere.
                Answer::Bad(_) => {
                    awaited.clear();
                    self.shared.give_up();
                    self.spans.go_back(span);
                }
            }
        }
    }

    fn most_out(&self) -> usize {
        if self.spans.is_whole() {
            self.shared.pace.active().saturating_add(1)
        } else {
            self.spans_out
        }
    }

    fn ask(&self, span: Span) -> Result<Receiver<Answer<S::Item, B>>, Stop> {
        let (answer, answers) = bounded(1);
        let round = self.shared.round();
        let sent = self.tasks.send(Task {
            span,
            round,
            answer,
        });
        sent.map_err(|_| Stop::Gone)?;
        Ok(answers)
    }

    /// Updates the position to a span's first items.
    fn enter(&mut self, span: Span) {
        if self.position.epoch != span.epoch {
            let epoch = span.epoch;
            self.position = Position {
                epoch,
                ..Position::START
            };
        }
    }

    /// Handles a batch made by a worker, which has no bad items.
    fn add_batch(&mut self, span: Span, made: B, open: &mut Batch<S::Item>) -> Result<(), Stop> {
        self.enter(span);
        self.position.items = span.first + span.count;
        if span.count == self.size || !self.drop_last {
            let first = self.shared.place(span.epoch, span.first);
            let skipped = std::mem::take(&mut open.skipped);
            self.hand_over((first, skipped), false, || Ok(made))?;
        }
        if span.ends {
            *open = self.end(span.epoch, std::mem::take(open))?;
        }
        Ok(())
    }

    /// Adds a span's items to batches; returns the incomplete one.
    fn add(
        &mut self,
        span: Span,
        items: Vec<Result<S::Item, DataError>>,
        mut batch: Batch<S::Item>,
    ) -> Result<Batch<S::Item>, Stop> {
        for (index, item) in (span.first..).zip(items) {
            self.enter(span);
            self.position.items = index + 1;
            match item {
                Ok(item) => {
                    let place = || self.shared.place(span.epoch, index);
                    batch.first.get_or_insert_with(place);
                    batch.items.push(item);
                }
                Err(error) => batch.skipped.push(self.skip(error)?),
            }
            if batch.items.len() == self.size {
                batch = self.send(batch)?;
            }
        }
        if span.ends {
            batch = self.end(span.epoch, batch)?;
        }
        Ok(batch)
    }

    /// Ends an epoch; batches do not span epochs.
    fn end(&mut self, epoch: u64, mut batch: Batch<S::Item>) -> Result<Batch<S::Item>, Stop> {
        if !self.drop_last && !batch.items.is_empty() {
            batch = self.send(batch)?;
        }
        if !std::mem::take(&mut self.gave) {
            let bad = self.position.skipped;
            return Err(Stop::Failed(DataError::NoBatch { epoch, bad }));
        }
        batch.items.clear();
        batch.first = None;
        Ok(batch)
    }

    fn skip(&mut self, error: DataError) -> Result<DataError, Stop> {
        if self.allowed == 0 {
            return Err(Stop::Failed(error));
        }
        self.position.skipped += 1;
        if self.position.skipped <= self.allowed {
            return Ok(error);
        }
        Err(Stop::Failed(DataError::TooManyBad {
            bad: self.position.skipped,
            epoch: self.position.epoch,
            allowed: self.allowed,
            last: Box::new(error),
        }))
    }

    /// Sends the batch and returns an empty one.
    fn send(&mut self, full: Batch<S::Item>) -> Result<Batch<S::Item>, Stop> {
        let first = full.first.unwrap_or(Place::Item(0));
        let shared = Arc::clone(&self.shared);
        let make = move || (shared.making.collate)(full.items);
        self.hand_over((first, full.skipped), true, make)?;
        Ok(Batch::default())
    }

    /// Records the size of one batch in many.
    fn weigh(&mut self, batch: &B) {
        if self.batches.is_multiple_of(WEIGHED)
            && let Some(bytes) = bytes_of(batch)
        {
            self.shared.batch_bytes.store(bytes, Ordering::Relaxed);
        }
        if self.batches.is_multiple_of(TIDIED) {
            drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGE)));
        }
        self.batches += 1;
    }

    /// Makes a batch, possibly by stacking items, copies it to its device and sends it to the consumer.
    fn hand_over(
        &mut self,
        (first, skipped): (Place, Vec<DataError>),
        stacks: bool,
        make: impl FnOnce() -> anyhow::Result<B>,
    ) -> Result<(), Stop> {
        // A worker's batch passes through unchanged if it stays on the host.
        let works = stacks || self.bring.is_some();
        let sampling = works.then(|| Sampling::begin(Phase::Stack));
        let made = caught(|| {
            let batch = make()?;
            self.weigh(&batch);
            Ok(match &self.bring {
                Some(bring) => {
                    let (batch, arrived) = Phase::Copy.during(|| bring(batch))?;
                    (batch, Some(arrived))
                }
                None => (batch, None),
            })
        });
        if let Some(sampling) = sampling {
            self.shared.batching.add_whole(&sampling.end().taken);
            self.delays.look(Ticks::now(), &self.shared.batching);
        }
        let (batch, arrived) =
            made.map_err(|source| Stop::Failed(DataError::Batch { first, source }))?;
        let ready = Ready::Batch {
            batch,
            arrived,
            after: self.position.normal(self.shared.source.len()),
            skipped,
        };
        if self.waits_for_room {
            self.shared.pace.wait_for_room(|| self.ready.len());
        }
        self.ready.send(ready).map_err(|_| Stop::Gone)?;
        self.gave = true;
        Ok(())
    }
}
