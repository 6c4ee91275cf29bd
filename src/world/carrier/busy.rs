//! Threads that work on the values of a generation.
//!
//! Behind a failure they may be late: one that has a value of the step that failed, and finds the
//! channels and the headers of the next generation, would take its failure, or its values, for
//! its own. So no generation begins before they have put down what they had.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// How many pieces of work are under way.
#[derive(Debug, Default)]
pub(super) struct Busy(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    pieces: Mutex<usize>,
    none: Condvar,
}

/// A piece of work, until it is dropped.
#[derive(Debug)]
pub(super) struct Piece(Arc<Count>);

impl Busy {
    /// One more.
    pub(super) fn begin(&self) -> Piece {
        *self.0.pieces.lock() += 1;
        Piece(Arc::clone(&self.0))
    }

    /// Waits until all are done. They are soon, once their generation has ended.
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
