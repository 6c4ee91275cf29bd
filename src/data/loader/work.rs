//! Work of the loader's workers.

use std::cell::Cell;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use tch::Device;

use super::making::Making;
use super::pace::Pace;
use super::position::Span;
use super::watching::Done;
use crate::diagnosis::clock::Ticks;
use crate::diagnosis::ledger::{DelayReader, Entry, Ledger};
use crate::diagnosis::phase::{Sampling, skip};
use crate::{DataError, Phase, Place, Source, room};
use gpipe_torch::{Pool, TorchError, caught, mix, prepare_thread};

/// Number of consecutive items sampled.
const SAMPLE: usize = 8;

/// Result of a span.
pub(super) enum Answer<T, B> {
    /// The items, or their errors.
    Items(Vec<Result<T, DataError>>),
    /// A batch of all items.
    Batch(B),
    /// The first bad item; there is no such batch.
    Bad(DataError),
    /// All items are good, but cannot be stacked.
    Unfit(anyhow::Error),
}

/// A span to make, and the channel of its answer.
pub(super) struct Task<T, B> {
    pub(super) span: Span,
    /// Number of the request's round: see [`Shared::give_up`].
    pub(super) round: u64,
    pub(super) answer: Sender<Answer<T, B>>,
}

/// Epoch and index of a worker's current item.
type At = Option<(u64, usize)>;

/// State shared by the threads of a loader.
pub(super) struct Shared<S: Source, B> {
    pub(super) source: S,
    pub(super) making: Making<S, B>,
    /// Current item of each worker.
    busy: Box<[Mutex<At>]>,
    /// Work done by each worker.
    ledgers: Box<[Ledger]>,
    /// Work done by the batching thread.
    pub(super) batching: Ledger,
    pub(super) pace: Pace,
    /// Bytes of a batch, 0 if unknown.
    pub(super) batch_bytes: AtomicU64,
    /// Tasks of earlier rounds are obsolete.
    round: AtomicU64,
    memory: Arc<Pool>,
}

impl<S: Source, B: Send + 'static> Shared<S, B> {
    pub(super) fn new(
        source: S,
        making: Making<S, B>,
        workers: usize,
        pace: Pace,
    ) -> Result<Arc<Self>, TorchError> {
        let busy = std::iter::repeat_with(|| Mutex::new(None)).take(workers);
        let ledgers = std::iter::repeat_with(Ledger::default).take(workers);
        Ok(Arc::new(Self {
            source,
            making,
            busy: busy.collect(),
            ledgers: ledgers.collect(),
            batching: Ledger::default(),
            pace,
            batch_bytes: AtomicU64::new(0),
            round: AtomicU64::new(0),
            memory: Arc::new(Pool::new()?),
        }))
    }

    /// Lets this thread reuse the memory of batches.
    pub(super) fn use_memory(&self) {
        room::enter(Arc::clone(&self.memory));
    }

    pub(super) fn round(&self) -> u64 {
        self.round.load(Ordering::Relaxed)
    }

    /// Drops all requests made so far.
    pub(super) fn give_up(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the requested spans until the queue closes.
    pub(super) fn work(&self, worker: usize, tasks: &Receiver<Task<S::Item, B>>) {
        // The cores are for the stages; more workers speed up a transformation. If libtorch refuses,
        // loading is only slower.
        let _ = prepare_thread(Device::Cpu, 1);
        self.use_memory();
        let (ledger, delays) = (&self.ledgers[worker], DelayReader::new());
        loop {
            self.pace.admit(worker);
            let Ok(task) = tasks.recv() else {
                return;
            };
            self.pace.begin();
            let begin = Ticks::now();
            let own = Worker {
                shared: self,
                number: worker,
                ledger,
                paused: Cell::new(0),
                span: task.span,
                round: task.round,
            };
            let answer = if task.span.whole {
                own.batch()
            } else {
                own.items().map(Answer::Items)
            };
            *self.busy[worker].lock() = None;
            let end = Ticks::now();
            let items = answer.as_ref().map_or(0, |_| task.span.count);
            let took = end.since(begin);
            let wall = took.wall.saturating_sub(own.paused.get());
            ledger.add_task(Ticks { wall, ..took }, items, tasks.len());
            delays.look(end, ledger);
            self.pace.end();
            if let Some(answer) = answer {
                // If nobody listens, the request was dropped meanwhile.
                let _ = task.answer.send(answer);
            }
        }
    }

    /// Returns an item's place, even if the source panics while telling it.
    pub(super) fn place(&self, epoch: u64, index: usize) -> Place {
        let place = caught(|| Ok(self.source.place(epoch, index)));
        place.unwrap_or(Place::Item(index))
    }
}

/// A worker with its task.
struct Worker<'a, S: Source, B> {
    shared: &'a Shared<S, B>,
    number: usize,
    ledger: &'a Ledger,
    /// Nanoseconds of pauses.
    paused: Cell<u64>,
    span: Span,
    round: u64,
}

impl<S: Source, B: Send + 'static> Worker<'_, S, B> {
    /// Makes a batch of the items; `None` if the request was dropped.
    fn batch(&self) -> Option<Answer<S::Item, B>> {
        let Span {
            epoch,
            first,
            count,
            ..
        } = self.span;
        self.is_at(0).is_continue().then_some(())?;
        let indices: Vec<usize> = (first..first + count).collect();
        let gathered = self.exactly(Phase::Read, || {
            caught(|| {
                let source = &self.shared.source;
                (self.shared.making.gather)(source, epoch, &indices).transpose()
            })
        });
        // Making the items one by one finds the bad item.
        if let Ok(Some(batch)) = gathered {
            return Some(Answer::Batch(batch));
        }
        let rows = caught(|| Ok((self.shared.making.begin)(count)));
        let mut rows = match rows {
            Ok(rows) => rows,
            Err(error) => return Some(Answer::Unfit(error)),
        };
        let mut unfit = None;
        let bad = self.each(&mut |item| match item {
            Ok(item) => {
                if unfit.is_none() {
                    let put = caught(|| {
                        rows.push(item);
                        Ok(())
                    });
                    unfit = put.err();
                }
                None
            }
            Err(error) => Some(error),
        });
        match bad {
            Seen::Given(error) => return Some(Answer::Bad(error)),
            Seen::Stopped => return None,
            Seen::All => (),
        }
        let made = match unfit {
            None => self.exactly(Phase::Stack, || caught(|| rows.finish())),
            Some(error) => Err(error),
        };
        Some(made.map_or_else(Answer::Unfit, Answer::Batch))
    }

    /// Makes the items one by one; `None` if the request was dropped.
    fn items(&self) -> Option<Vec<Result<S::Item, DataError>>> {
        let mut items = Vec::with_capacity(self.span.count);
        let seen = self.each(&mut |item| {
            items.push(item);
            None::<()>
        });
        matches!(seen, Seen::All).then_some(items)
    }

    /// Runs work done once per batch, which starts in this phase.
    fn exactly<R>(&self, phase: Phase, work: impl FnOnce() -> R) -> R {
        let sampling = Sampling::begin(phase);
        let result = work();
        self.ledger.add_exact(&sampling.end().taken);
        result
    }

    /// Returns the items to sample: a few consecutive ones, elsewhere each time.
    fn sample(&self, count: usize) -> Range<usize> {
        if !self.ledger.samples() {
            return count..count;
        }
        let places = (count / SAMPLE).max(1) as u64;
        let begin = mix(self.ledger.tasks(), self.number as u64) % places;
        let begin = begin as usize * SAMPLE;
        begin..(begin + SAMPLE).min(count)
    }

    /// Passes each item to `show` until that returns a value. A panic while making an item is an error
    /// like any other, and the next item follows.
    fn each<R>(&self, show: &mut dyn FnMut(Result<S::Item, DataError>) -> Option<R>) -> Seen<R> {
        let Span {
            epoch,
            first,
            count,
            ..
        } = self.span;
        let indices: Vec<usize> = (first..first + count).collect();
        let sample = self.sample(count);
        let (mut done, mut given) = (0, None);
        while done < count {
            if self.is_at(done).is_break() {
                return Seen::Stopped;
            }
            let before = done;
            let edges = [sample.start, sample.end, count];
            let end = edges.into_iter().find(|edge| *edge > done).unwrap_or(count);
            let sampling = sample.contains(&done).then(|| Sampling::begin(Phase::Read));
            let made = caught(|| {
                let source = &self.shared.source;
                let _ = source.batch(epoch, &indices[done..end], &mut |item| {
                    if done == end {
                        return ControlFlow::Break(());
                    }
                    done += 1;
                    given = Phase::Stack.during(|| show(item));
                    if given.is_some() {
                        return ControlFlow::Break(());
                    }
                    self.is_at(done)
                });
                anyhow::ensure!(done > before, "its source gives no item");
                Ok(())
            });
            if let Some(sampling) = sampling {
                self.ledger.add_sampled(&sampling.end());
            }
            if let Err(source) = made {
                let place = self.shared.place(epoch, first + done);
                done += 1;
                given = show(Err(DataError::Item { place, source }));
            }
            if let Some(given) = given {
                return Seen::Given(given);
            }
        }
        Seen::All
    }

    /// Records the current item, and checks that the request was not dropped.
    fn is_at(&self, done: usize) -> ControlFlow<()> {
        let Shared { busy, pace, .. } = self.shared;
        match pace.check() {
            0 => {}
            paused => {
                self.paused.set(self.paused.get() + paused);
                skip(paused);
            }
        }
        if pace.is_stopped() || self.shared.round() != self.round {
            return ControlFlow::Break(());
        }
        if done < self.span.count {
            *busy[self.number].lock() = Some((self.span.epoch, self.span.first + done));
        }
        ControlFlow::Continue(())
    }
}

/// How passing items ended.
enum Seen<R> {
    All,
    /// `show` returned a value.
    Given(R),
    /// The request was dropped.
    Stopped,
}

/// The consumer's view of the threads.
pub(super) trait Watch: Send + Sync {
    /// Returns the place of the first item that a worker is making.
    fn waiting_for(&self) -> Place;
    /// Stops the workers, each after its current item.
    fn stop(&self);
    /// Returns the workers' pace.
    fn pace(&self) -> &Pace;
    /// Returns the work done by all threads.
    fn done(&self) -> Done;
    /// Returns the bytes of a batch, if known.
    fn batch_bytes(&self) -> Option<u64>;
}

impl<S: Source, B: Send + 'static> Watch for Shared<S, B> {
    fn waiting_for(&self) -> Place {
        let first = self.busy.iter().filter_map(|busy| *busy.lock()).min();
        first.map_or(Place::Item(0), |(epoch, index)| self.place(epoch, index))
    }

    fn stop(&self) {
        self.pace.stop();
    }

    fn pace(&self) -> &Pace {
        &self.pace
    }

    fn done(&self) -> Done {
        let all = self.ledgers.iter().map(Ledger::entry);
        Done {
            workers: all.fold(Entry::default(), Entry::plus),
            batching: self.batching.entry(),
        }
    }

    fn batch_bytes(&self) -> Option<u64> {
        let bytes = self.batch_bytes.load(Ordering::Relaxed);
        (bytes > 0).then_some(bytes)
    }
}
