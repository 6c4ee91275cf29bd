//! Items into batches, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::bringing::Bring;
use super::position::{Position, Span, Spans};
use super::work::{Answer, Shared, Task};
use crate::data::{DataError, Place, Source};
use crate::torch::caught;
use crate::torch::streams::Event;

/// What the consumer gets.
#[derive(Debug)]
pub(super) enum Ready<B> {
    Batch {
        batch: B,
        /// Where it is brought to a device: the end of its way.
        arrived: Option<Event>,
        /// Where the loader stands once it is taken.
        after: Position,
        /// What was bad on the way to it.
        skipped: Vec<DataError>,
    },
    Failed(DataError),
    /// The end, and what was bad after the last batch.
    Ended(Vec<DataError>),
    /// Nothing came for as long as the consumer has patience.
    Slow(Duration),
}

/// Makes one batch of items.
pub(super) type Collate<T, B> = Box<dyn Fn(Vec<T>) -> anyhow::Result<B> + Send>;

/// What the batching thread works with.
pub(super) struct Assembly<S: Source, B> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) spans: Spans,
    pub(super) tasks: Sender<Task<S::Item>>,
    pub(super) collate: Collate<S::Item, B>,
    pub(super) bring: Option<Bring<B>>,
    pub(super) ready: Sender<Ready<B>>,
    pub(super) size: usize,
    pub(super) drop_last: bool,
    /// Bad items that may be skipped in an epoch.
    pub(super) allowed: u64,
    /// Tasks that are out at a time.
    pub(super) out: usize,
    pub(super) position: Position,
    /// Whether the epoch gave a batch, or began before the loader did.
    pub(super) gave: bool,
}

/// Why the batching thread ends early.
enum Stop {
    Failed(DataError),
    /// Nobody wants batches any more.
    Gone,
}

/// The batch that is being made.
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

impl<S: Source, B> Assembly<S, B> {
    /// Makes batches until the epochs end or nobody wants any.
    pub(super) fn run(mut self) {
        let last = match self.batches() {
            Ok(skipped) => Ready::Ended(skipped),
            Err(Stop::Failed(error)) => Ready::Failed(error),
            Err(Stop::Gone) => return,
        };
        // Where nobody listens there is nobody to tell.
        let _ = self.ready.send(last);
    }

    /// Makes all batches; gives what was bad after the last.
    fn batches(&mut self) -> Result<Vec<DataError>, Stop> {
        let mut awaited = VecDeque::new();
        let mut batch = Batch::default();
        loop {
            while awaited.len() < self.out
                && let Some(span) = self.spans.next()
            {
                awaited.push_back((span, self.ask(span)?));
            }
            let Some((span, answer)) = awaited.pop_front() else {
                return Ok(batch.skipped);
            };
            // A worker that ended without an answer was told to.
            let items = answer.recv().map_err(|_| Stop::Gone)?;
            batch = self.add(span, items, batch)?;
        }
    }

    fn ask(&self, span: Span) -> Result<Receiver<Answer<S::Item>>, Stop> {
        let (answer, answers) = bounded(1);
        let sent = self.tasks.send(Task { span, answer });
        sent.map_err(|_| Stop::Gone)?;
        Ok(answers)
    }

    /// The items of a span into batches; gives the one that is not full.
    fn add(
        &mut self,
        span: Span,
        items: Answer<S::Item>,
        mut batch: Batch<S::Item>,
    ) -> Result<Batch<S::Item>, Stop> {
        for (index, item) in (span.first..).zip(items) {
            if self.position.epoch != span.epoch {
                let epoch = span.epoch;
                self.position = Position {
                    epoch,
                    ..Position::START
                };
            }
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

    /// The end of an epoch, no part of whose items goes to the next.
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

    /// Makes the batch and hands it on; gives an empty one.
    fn send(&mut self, full: Batch<S::Item>) -> Result<Batch<S::Item>, Stop> {
        let first = full.first.unwrap_or(Place::Item(0));
        let made = caught(|| {
            let batch = (self.collate)(full.items)?;
            Ok(match &self.bring {
                Some(bring) => {
                    let (batch, arrived) = bring(batch)?;
                    (batch, Some(arrived))
                }
                None => (batch, None),
            })
        });
        let (batch, arrived) =
            made.map_err(|source| Stop::Failed(DataError::Batch { first, source }))?;
        let ready = Ready::Batch {
            batch,
            arrived,
            after: self.position.normal(self.shared.source.len()),
            skipped: full.skipped,
        };
        self.ready.send(ready).map_err(|_| Stop::Gone)?;
        self.gave = true;
        Ok(Batch::default())
    }
}
