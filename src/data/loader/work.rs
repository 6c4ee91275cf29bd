//! What the workers do.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use tch::Device;

use super::making::Making;
use super::position::Span;
use crate::TorchError;
use crate::data::{DataError, Place, Source, room};
use crate::torch::{Pool, caught, prepare_thread};

/// What came of a span.
pub(super) enum Answer<T, B> {
    /// Its items, each made or not.
    Items(Vec<Result<T, DataError>>),
    /// A batch of all of them.
    Batch(B),
    /// There is no such batch: the first item that is bad.
    Bad(DataError),
    /// All items are there, but cannot be made a batch.
    Unfit(anyhow::Error),
}

/// A span to make, and where it is awaited.
pub(super) struct Task<T, B> {
    pub(super) span: Span,
    /// That of the order in which it was asked for: see [`Shared::give_up`].
    pub(super) round: u64,
    pub(super) answer: Sender<Answer<T, B>>,
}

/// Epoch and index of the item that a worker is at.
type At = Option<(u64, usize)>;

/// What the threads of a loader share.
pub(super) struct Shared<S: Source, B> {
    pub(super) source: S,
    pub(super) making: Making<S, B>,
    /// What each worker is at.
    busy: Box<[Mutex<At>]>,
    stopped: AtomicBool,
    /// Tasks of earlier ones need not be done any more.
    round: AtomicU64,
    memory: Arc<Pool>,
}

impl<S: Source, B: Send + 'static> Shared<S, B> {
    pub(super) fn new(
        source: S,
        making: Making<S, B>,
        workers: usize,
    ) -> Result<Arc<Self>, TorchError> {
        let busy = std::iter::repeat_with(|| Mutex::new(None)).take(workers);
        Ok(Arc::new(Self {
            source,
            making,
            busy: busy.collect(),
            stopped: AtomicBool::new(false),
            round: AtomicU64::new(0),
            memory: Arc::new(Pool::new()?),
        }))
    }

    /// Has this thread make batches in memory that is used again.
    pub(super) fn use_memory(&self) {
        room::enter(Arc::clone(&self.memory));
    }

    pub(super) fn round(&self) -> u64 {
        self.round.load(Ordering::Relaxed)
    }

    /// Nobody waits any more for what was asked for up to now.
    pub(super) fn give_up(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes what is asked for until nobody asks any more.
    pub(super) fn work(&self, worker: usize, tasks: &Receiver<Task<S::Item, B>>) {
        // The stages need the cores; a transformation gets others by more workers.
        // Where libtorch refuses, everything is only slower.
        let _ = prepare_thread(Device::Cpu, 1);
        self.use_memory();
        for task in tasks {
            let own = Worker {
                shared: self,
                number: worker,
                span: task.span,
                round: task.round,
            };
            let answer = if task.span.whole {
                own.batch()
            } else {
                own.items().map(Answer::Items)
            };
            *self.busy[worker].lock() = None;
            if let Some(answer) = answer {
                // Where nobody listens, it was given up meanwhile.
                let _ = task.answer.send(answer);
            }
        }
    }

    /// Where an item comes from; what cannot even tell that may not take the thread along.
    pub(super) fn place(&self, epoch: u64, index: usize) -> Place {
        let place = caught(|| Ok(self.source.place(epoch, index)));
        place.unwrap_or(Place::Item(index))
    }
}

/// A worker at its task.
struct Worker<'a, S: Source, B> {
    shared: &'a Shared<S, B>,
    number: usize,
    span: Span,
    round: u64,
}

impl<S: Source, B: Send + 'static> Worker<'_, S, B> {
    /// The items as a batch; none where nobody waits for it any more.
    fn batch(&self) -> Option<Answer<S::Item, B>> {
        let Span {
            epoch,
            first,
            count,
            ..
        } = self.span;
        self.is_at(0).is_continue().then_some(())?;
        let indices: Vec<usize> = (first..first + count).collect();
        let gathered = caught(|| {
            let source = &self.shared.source;
            (self.shared.making.gather)(source, epoch, &indices).transpose()
        });
        // What is wrong, and with which item, is found when they are made one by one.
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
            None => caught(|| rows.finish()),
            Some(error) => Err(error),
        };
        Some(made.map_or_else(Answer::Unfit, Answer::Batch))
    }

    /// The items, one by one; none where nobody waits for them any more.
    fn items(&self) -> Option<Vec<Result<S::Item, DataError>>> {
        let mut items = Vec::with_capacity(self.span.count);
        let seen = self.each(&mut |item| {
            items.push(item);
            None::<()>
        });
        matches!(seen, Seen::All).then_some(items)
    }

    /// Shows each item until `show` gives something. A panic of whatever makes an item is an error
    /// like any other, and the next one comes after it.
    fn each<R>(&self, show: &mut dyn FnMut(Result<S::Item, DataError>) -> Option<R>) -> Seen<R> {
        let Span {
            epoch,
            first,
            count,
            ..
        } = self.span;
        let indices: Vec<usize> = (first..first + count).collect();
        let (mut done, mut given) = (0, None);
        while done < count {
            if self.is_at(done).is_break() {
                return Seen::Stopped;
            }
            let before = done;
            let made = caught(|| {
                let source = &self.shared.source;
                let _ = source.batch(epoch, &indices[done..], &mut |item| {
                    if done == count {
                        return ControlFlow::Break(());
                    }
                    done += 1;
                    given = show(item);
                    if given.is_some() {
                        return ControlFlow::Break(());
                    }
                    self.is_at(done)
                });
                anyhow::ensure!(done > before, "its source gives no item");
                Ok(())
            });
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

    /// Says which item comes next, and whether anybody waits for it.
    fn is_at(&self, done: usize) -> ControlFlow<()> {
        let Shared { busy, stopped, .. } = self.shared;
        if stopped.load(Ordering::Relaxed) || self.shared.round() != self.round {
            return ControlFlow::Break(());
        }
        if done < self.span.count {
            *busy[self.number].lock() = Some((self.span.epoch, self.span.first + done));
        }
        ControlFlow::Continue(())
    }
}

/// How looking at items ended.
enum Seen<R> {
    All,
    /// With one of which this was given.
    Given(R),
    /// Nobody waits any more.
    Stopped,
}

/// What the consumer sees of the threads.
pub(super) trait Watch: Send + Sync {
    /// Where the first item comes from that a worker is at.
    fn waiting_for(&self) -> Place;
    /// Makes the workers end after the item that each is at.
    fn stop(&self);
}

impl<S: Source, B: Send + 'static> Watch for Shared<S, B> {
    fn waiting_for(&self) -> Place {
        let first = self.busy.iter().filter_map(|busy| *busy.lock()).min();
        first.map_or(Place::Item(0), |(epoch, index)| self.place(epoch, index))
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
