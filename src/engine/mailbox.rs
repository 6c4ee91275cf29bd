//! A queue with many writers and one reader, through which all values pass.

use super::spin::Spin;
use super::sync::{AtomicBool, Condvar, Mutex, wait, wait_at_most};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Unbounded queue of messages for one reader.
///
/// The lock alone orders memory: what a writer did before [`Mailbox::post`]
/// happens before what the reader does after it took the message.
pub(super) struct Mailbox<M> {
    state: Mutex<State<M>>,
    arrived: Condvar,
    /// Whether the queue is not empty. Written under the lock and read without it: a hint that may
    /// be late, through which no data is published.
    hint: AtomicBool,
}

struct State<M> {
    queue: Vec<M>,
    /// The reader sleeps on `arrived`, or is about to.
    asleep: bool,
}

impl<M> Mailbox<M> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                queue: Vec::new(),
                asleep: false,
            }),
            arrived: Condvar::new(),
            hint: AtomicBool::new(false),
        }
    }

    /// Appends `message` and wakes the reader if it sleeps.
    pub(super) fn post(&self, message: M) {
        self.post_all(std::iter::once(message));
    }

    /// Appends all of `messages` under one lock, with at most one wake-up.
    ///
    /// `messages` is pulled under the lock: it should only move values.
    pub(super) fn post_all(&self, messages: impl IntoIterator<Item = M>) {
        let mut state = self.state.lock();
        state.queue.extend(messages);
        self.hint.store(!state.queue.is_empty(), Relaxed);
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        // After unlocking, so that the reader does not wake up only to wait again.
        if wake {
            self.arrived.notify_one();
        }
    }

    /// Moves all queued messages to the end of `batch`, without waiting. A message posted at this
    /// very moment may stay for the next call.
    pub(super) fn poll(&self, batch: &mut Vec<M>) {
        if self.hint.load(Relaxed) {
            let mut state = self.state.lock();
            self.hint.store(false, Relaxed);
            hand_over(&mut state.queue, batch);
        }
    }

    /// Moves all queued messages to the end of `batch`, waiting for at least one: first awake for
    /// as long as `spin` allows, then asleep.
    pub(super) fn wait(&self, batch: &mut Vec<M>, spin: Spin) {
        spin.until(|| self.hint.load(Relaxed));
        let mut state = self.state.lock();
        while state.queue.is_empty() {
            state.asleep = true;
            state = wait(&self.arrived, state);
        }
        state.asleep = false;
        self.hint.store(false, Relaxed);
        hand_over(&mut state.queue, batch);
    }

    /// Moves all queued messages to the end of `batch`, waiting for a first one for about `limit`
    /// at most.
    pub(super) fn wait_at_most(&self, batch: &mut Vec<M>, limit: Duration) {
        let mut state = self.state.lock();
        if state.queue.is_empty() {
            state.asleep = true;
            wait_at_most(&self.arrived, state, limit);
            state = self.state.lock();
        }
        state.asleep = false;
        self.hint.store(false, Relaxed);
        hand_over(&mut state.queue, batch);
    }
}

/// Appends `queue` to `batch`; if `batch` is empty, swaps their buffers, so that nothing is copied
/// or allocated in the steady state.
fn hand_over<M>(queue: &mut Vec<M>, batch: &mut Vec<M>) {
    if batch.is_empty() {
        std::mem::swap(queue, batch);
    } else {
        batch.append(queue);
    }
}
