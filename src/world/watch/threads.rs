//! What the three threads of a world ask of its state, and tell it.

use std::time::{Duration, Instant};

use super::{End, Lost, Orders, Watch};

impl Watch {
    /// A thread that has a connection begins, or is at its end.
    pub(in crate::world) fn connected(&self, begins: bool) {
        let mut state = self.state.lock();
        if begins {
            state.connected += 1;
        } else {
            state.connected -= 1;
            self.changed.notify_all();
        }
    }

    /// The store has answered.
    pub(in crate::world) fn answered(&self) {
        let mut state = self.state.lock();
        (state.answered, state.has_answered) = (Instant::now(), true);
    }

    /// What was not heard so far says nothing.
    pub(in crate::world) fn listen_again(&self) {
        self.state.lock().answered = Instant::now();
    }

    /// Whether the store has ever answered.
    pub(in crate::world) fn has_answered(&self) -> bool {
        self.state.lock().has_answered
    }

    /// How long the store has been silent.
    pub(in crate::world) fn silence(&self) -> Duration {
        self.state.lock().answered.elapsed()
    }

    /// Whether no thread is needed any more.
    pub(in crate::world) fn is_closing(&self) -> bool {
        self.state.lock().closing
    }

    /// What the beat is to do; waits for so long at most where there is nothing.
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

    /// Waits for so long, or until nothing is left to be done. *Returns* whether that is so.
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

    /// Tells the others that this process ends, unless all know how the world has ended, and has
    /// the threads end. *Returns* whether they did until then.
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
