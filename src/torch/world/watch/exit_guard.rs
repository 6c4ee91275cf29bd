//! Guards that delay the end of a process, even after a failure has ended the world's generation.

use std::sync::Arc;

use super::{End, Watch};

/// Work that this process finishes before a failure of another process ends it.
#[derive(Debug)]
pub struct Held(Arc<Watch>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.state.lock().held -= 1;
    }
}

impl Watch {
    /// Delays the end of this process while the result lives, but not after a loss.
    pub(in crate::world) fn hold(self: &Arc<Self>) -> Held {
        self.state.lock().held += 1;
        Held(Arc::clone(self))
    }

    /// Returns whether any work is held.
    pub(in crate::world) fn holds(&self) -> bool {
        let state = self.state.lock();
        let mut ends = state.end.iter().chain(state.ahead.values());
        let is_over = ends.any(End::is_final) || state.broken.is_some();
        state.held > 0 && !is_over
    }
}
