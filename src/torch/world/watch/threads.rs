//! Interface of a world's threads to its state.

use std::time::{Duration, Instant};

use super::{End, Lost, Orders, Watch};

impl Watch {
    /// Counts a thread connected to the store, which begins or ends.
    pub(in crate::world) fn connected(&self, begins: bool) {
        let mut state = self.state.lock();
        if begins {
            state.connected += 1;
        } else {
            state.connected -= 1;
            self.changed.notify_all();
        }
    }

    /// Records an answer of the store.
    pub(in crate::world) fn answered(&self) {
        let mut state = self.state.lock();
        (state.answered, state.has_answered) = (Instant::now(), true);
    }

    /// Restarts the measurement of the store's silence.
    pub(in crate::world) fn listen_again(&self) {
        self.state.lock().answered = Instant::now();
    }

    /// Returns whether the store has ever answered.
    pub(in crate::world) fn has_answered(&self) -> bool {
        self.state.lock().has_answered
    }

    /// Returns how long the store has been silent.
    pub(in crate::world) fn silence(&self) -> Duration {
        self.state.lock().answered.elapsed()
    }

    /// Returns whether threads are no longer needed.
    pub(in crate::world) fn is_closing(&self) -> bool {
        self.state.lock().closing
    }

    /// Returns the next tasks of the beat; waits at most `at_most` if there are none.
    pub(in crate::world) fn orders(&self, at_most: Duration) -> Orders {
        let until = Instant::now() + at_most;
        let mut state = self.state.lock();
        loop {
            let close = state.closing || state.end.as_ref().is_some_and(End::is_final);
            let orders = Orders {
                generation: state.generation,
                abort: state.asked.take(),
                leave: std::mem::take(&mut state.leaving),
                close,
            };
            let waits = orders.abort.is_none() && !orders.leave && !close;
            if !waits || self.changed.wait_until(&mut state, until).timed_out() {
                return orders;
            }
        }
    }

    /// Waits at most `time` for the end of all tasks. *Returns* whether that has come.
    pub(in crate::world) fn is_over_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        loop {
            if state.closing || state.end.as_ref().is_some_and(End::is_final) {
                return true;
            }
            if self.changed.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
    }

    /// Tells the others that this process ends, unless all know how the world has ended, and ends
    /// the threads. *Returns* whether they ended before `until`.
    pub(in crate::world) fn close(&self, farewell: Lost, until: Instant) -> bool {
        let mut state = self.state.lock();
        if !state.end.as_ref().is_some_and(End::is_final) {
            state.asked.get_or_insert(farewell);
        }
        state.closing = true;
        self.changed.notify_all();
        while state.connected > 0 {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return state.connected == 0;
            }
        }
        true
    }
}
