//! Who of a loader's threads may work: workers that are not needed wait, and all of them pause for
//! a step now and then, which shows what it takes without them.
//!
//! A worker passes [`Pace::admit`] before it takes a task and [`Pace::check`] before each item;
//! neither takes a lock unless there is something to wait for. Whoever waits is woken by what it
//! waits for or by [`Pace::stop`]. A pause ends by itself after its limit, since a consumer may
//! wait for something that a worker does.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::diagnosis::clock::wall;

/// Workers, pauses and batches ahead, as they are now.
#[derive(Debug)]
pub(super) struct Pace {
    /// Workers that may take tasks: those of lower numbers.
    active: AtomicUsize,
    /// Batches that may be ready.
    ahead: AtomicUsize,
    paused: AtomicBool,
    stopped: AtomicBool,
    /// Workers that are at work.
    running: AtomicUsize,
    /// When the last of them paused, by [`wall`]; 0 where one works.
    quiet: AtomicU64,
    /// Until when a pause lasts at most; whoever changes anything above for those who wait holds
    /// it.
    until: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Pace {
    pub(super) fn new(active: usize, ahead: usize) -> Self {
        Self {
            active: AtomicUsize::new(active),
            ahead: AtomicUsize::new(ahead),
            paused: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            quiet: AtomicU64::new(0),
            until: Mutex::new(None),
            changed: Condvar::new(),
        }
    }

    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    pub(super) fn ahead(&self) -> usize {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Has so many workers work and so many batches be ready from now on.
    pub(super) fn set(&self, active: usize, ahead: usize) {
        let _held = self.until.lock();
        self.active.store(active, Ordering::Relaxed);
        self.ahead.store(ahead, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Nobody waits any more.
    pub(super) fn stop(&self) {
        let _held = self.until.lock();
        self.stopped.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits until a worker may take a task.
    pub(super) fn admit(&self, worker: usize) {
        if worker < self.active() {
            return;
        }
        let mut held = self.until.lock();
        while worker >= self.active() && !self.is_stopped() {
            self.changed.wait(&mut held);
        }
    }

    /// Waits until fewer batches are `ready` than may be.
    pub(super) fn wait_for_room(&self, ready: impl Fn() -> usize) {
        let mut held = self.until.lock();
        while ready() >= self.ahead().max(1) && !self.is_stopped() {
            self.changed.wait(&mut held);
        }
    }

    /// A batch was taken.
    pub(super) fn taken(&self) {
        let _held = self.until.lock();
        self.changed.notify_all();
    }

    /// A worker begins a task.
    pub(super) fn begin(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.quiet.store(0, Ordering::SeqCst);
    }

    /// A worker has done its task, or pauses.
    pub(super) fn end(&self) {
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.quiet.store(wall(), Ordering::SeqCst);
        }
    }

    /// Waits for the end of a pause, where there is one, and gives the nanoseconds that it took; a
    /// worker calls this between two items.
    pub(super) fn check(&self) -> u64 {
        if !self.paused.load(Ordering::Relaxed) {
            return 0;
        }
        let begin = wall();
        self.end();
        let mut held = self.until.lock();
        while self.paused.load(Ordering::Relaxed) && !self.is_stopped() {
            let until = held.unwrap_or_else(Instant::now);
            if self.changed.wait_until(&mut held, until).timed_out() {
                self.paused.store(false, Ordering::Relaxed);
            }
        }
        drop(held);
        self.begin();
        wall().saturating_sub(begin)
    }

    /// Has the workers pause after the item that each is at.
    pub(super) fn pause(&self, limit: Duration) {
        let mut until = self.until.lock();
        *until = Instant::now().checked_add(limit);
        if self.running.load(Ordering::SeqCst) == 0 {
            self.quiet.store(wall(), Ordering::SeqCst);
        }
        self.paused.store(true, Ordering::Relaxed);
    }

    /// Ends a pause: since when no worker was at work, if all paused and none has gone on.
    pub(super) fn resume(&self) -> Option<u64> {
        let _held = self.until.lock();
        let paused = self.paused.swap(false, Ordering::Relaxed);
        let quiet = self.quiet.load(Ordering::SeqCst);
        self.changed.notify_all();
        (paused && quiet > 0).then_some(quiet)
    }
}
