//! What keeps a process from its end for a while, also where the world has ended by a failure.

use std::sync::Arc;

use super::{End, Watch};

/// What this process does to its end before it ends by a failure of another one.
#[derive(Debug)]
pub(crate) struct Held(Arc<Watch>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.state.lock().held -= 1;
    }
}

impl Watch {
    /// Keeps this process from its end while the result lives, but not after a loss.
    pub(in crate::world) fn hold(self: &Arc<Self>) -> Held {
        self.state.lock().held += 1;
        Held(Arc::clone(self))
    }

    /// Whether there is anything to be done to its end.
    pub(in crate::world) fn holds(&self) -> bool {
        let state = self.state.lock();
        let mut ends = state.end.iter().chain(state.ahead.values());
        let is_over = ends.any(End::is_final) || state.broken.is_some();
        state.held > 0 && !is_over
    }
}
