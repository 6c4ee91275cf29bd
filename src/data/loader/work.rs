//! What the workers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use tch::Device;

use super::position::Span;
use crate::data::{DataError, Place, Source};
use crate::torch::{caught, prepare_thread};

/// The items of a span, each made or not.
pub(super) type Answer<T> = Vec<Result<T, DataError>>;

/// A span to make, and where its items are awaited.
#[derive(Debug)]
pub(super) struct Task<T> {
    pub(super) span: Span,
    pub(super) answer: Sender<Answer<T>>,
}

/// The epoch and the number of the item that a worker is at.
type Busy = Mutex<Option<(u64, usize)>>;

/// What the threads of a loader share.
#[derive(Debug)]
pub(super) struct Shared<S> {
    pub(super) source: S,
    /// What each worker is at.
    busy: Box<[Busy]>,
    stopped: AtomicBool,
}

impl<S: Source> Shared<S> {
    pub(super) fn new(source: S, workers: usize) -> Arc<Self> {
        let busy = std::iter::repeat_with(|| Mutex::new(None)).take(workers);
        Arc::new(Self {
            source,
            busy: busy.collect(),
            stopped: AtomicBool::new(false),
        })
    }

    /// Makes what is asked for until nobody asks any more.
    pub(super) fn work(&self, worker: usize, tasks: &Receiver<Task<S::Item>>) {
        // The stages need the cores; a transformation gets others by more workers.
        // Where libtorch refuses, everything is only slower.
        let _ = prepare_thread(Device::Cpu, 1);
        for task in tasks {
            let Span {
                epoch,
                first,
                count,
                ..
            } = task.span;
            let mut items = Vec::with_capacity(count);
            for index in first..first + count {
                if self.stopped.load(Ordering::Relaxed) {
                    return;
                }
                *self.busy[worker].lock() = Some((epoch, index));
                items.push(self.make(epoch, index));
            }
            *self.busy[worker].lock() = None;
            // Nobody listens any more: the loader is being dropped.
            if task.answer.send(items).is_err() {
                return;
            }
        }
    }

    /// An item; a panic of whatever makes it is an error like any other.
    fn make(&self, epoch: u64, index: usize) -> Result<S::Item, DataError> {
        let made = caught(|| Ok(self.source.get(epoch, index)?));
        made.map_err(|error| {
            error.downcast().unwrap_or_else(|source| DataError::Item {
                place: self.place(epoch, index),
                source,
            })
        })
    }

    /// Where an item comes from; what cannot even tell that may not take the thread along.
    pub(super) fn place(&self, epoch: u64, index: usize) -> Place {
        let place = caught(|| Ok(self.source.place(epoch, index)));
        place.unwrap_or(Place::Item(index))
    }
}

/// What the consumer sees of the threads.
pub(super) trait Watch: Send + Sync {
    /// Where the first item comes from that a worker is at.
    fn waiting_for(&self) -> Place;
    /// Makes the workers end after the item that each is at.
    fn stop(&self);
}

impl<S: Source> Watch for Shared<S> {
    fn waiting_for(&self) -> Place {
        let first = self.busy.iter().filter_map(|busy| *busy.lock()).min();
        first.map_or(Place::Item(0), |(epoch, index)| self.place(epoch, index))
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
