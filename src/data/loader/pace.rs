//! Controls which of a loader's threads may work: surplus workers wait, and now and then all pause for
//! a step, to measure it without them.
//!
//! A worker calls [`Pace::admit`] before taking a task and [`Pace::check`] before each item; neither
//! locks unless there is a reason to wait. Waiting threads are woken by what they wait for, or by
//! [`Pace::stop`]. A pause ends by itself after its limit, as a consumer may wait for a worker's
//! result.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::diagnosis::clock::wall;

/// Current numbers of workers and prefetched batches, and pauses.
#[derive(Debug)]
pub(super) struct Pace {
    /// Number of active workers: those with lower indices may take tasks.
    active: AtomicUsize,
    /// Number of batches that may be ready.
    ahead: AtomicUsize,
    paused: AtomicBool,
    stopped: AtomicBool,
    /// Number of busy workers.
    running: AtomicUsize,
    /// Time when the last of them paused, by [`wall`]; 0 while one is busy.
    quiet: AtomicU64,
    /// Latest end of a pause. The lock is held while changing any field above for waiting threads.
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

    /// Sets the numbers of active workers and of ready batches.
    pub(super) fn set(&self, active: usize, ahead: usize) {
        let _held = self.until.lock();
        self.active.store(active, Ordering::Relaxed);
        self.ahead.store(ahead, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Ends all waiting.
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

    /// Waits until fewer batches are `ready` than allowed.
    pub(super) fn wait_for_room(&self, ready: impl Fn() -> usize) {
        let mut held = self.until.lock();
        while ready() >= self.ahead().max(1) && !self.is_stopped() {
            self.changed.wait(&mut held);
        }
    }

    /// Records that a batch was taken.
    pub(super) fn taken(&self) {
        let _held = self.until.lock();
        self.changed.notify_all();
    }

    /// Records that a worker begins a task.
    pub(super) fn begin(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.quiet.store(0, Ordering::SeqCst);
    }

    /// Records that a worker has finished its task, or pauses.
    pub(super) fn end(&self) {
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.quiet.store(wall(), Ordering::SeqCst);
        }
    }

    /// Waits for the end of a pause, if there is one, and returns its nanoseconds; workers call this
    /// between items.
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

    /// Pauses the workers, each after its current item.
    pub(super) fn pause(&self, limit: Duration) {
        let mut until = self.until.lock();
        *until = Instant::now().checked_add(limit);
        if self.running.load(Ordering::SeqCst) == 0 {
            self.quiet.store(wall(), Ordering::SeqCst);
        }
        self.paused.store(true, Ordering::Relaxed);
    }

    /// Ends a pause; returns the time since when no worker was busy, if all paused and none has
    /// resumed.
    pub(super) fn resume(&self) -> Option<u64> {
        let _held = self.until.lock();
        let paused = self.paused.swap(false, Ordering::Relaxed);
        let quiet = self.quiet.load(Ordering::SeqCst);
        self.changed.notify_all();
        (paused && quiet > 0).then_some(quiet)
    }
}
