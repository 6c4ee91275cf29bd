//! Threads that work on the values of a generation.
//!
//! They may be late after a failure: a thread still holding a value of the failed step could find
//! the channels and headers of the next generation, fail it, or take its values. So no generation
//! begins before all of them are done.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Counter of the work in progress.
#[derive(Debug, Default)]
pub(super) struct Busy(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    pieces: Mutex<usize>,
    none: Condvar,
}

/// A piece of work, which lasts until dropped.
#[derive(Debug)]
pub(super) struct Piece(Arc<Count>);

impl Busy {
    /// Adds a piece of work.
    pub(super) fn begin(&self) -> Piece {
        *self.0.pieces.lock() += 1;
        Piece(Arc::clone(&self.0))
    }

    /// Waits until all work is done, which is soon after its generation has ended.
    pub(super) fn wait(&self) {
        let mut pieces = self.0.pieces.lock();
        self.0.none.wait_while(&mut pieces, |pieces| *pieces > 0);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut pieces = self.0.pieces.lock();
        *pieces -= 1;
        if *pieces == 0 {
            self.0.none.notify_all();
        }
    }
}
