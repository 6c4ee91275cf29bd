//! Current position of a stage, for error messages: written by its thread, read by any.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// The layer that a stage is running.
///
/// It only tells a reader where the thread is and publishes no data, so it is read and written
/// relaxed.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    /// Index in `names`, counted from 1; 0 outside of all layers.
    at: Arc<AtomicUsize>,
    /// Names of the layers, followed by that of the loss.
    names: Arc<[String]>,
}

impl Progress {
    pub(super) fn new(layers: impl Iterator<Item = String>) -> Self {
        Self {
            at: Arc::default(),
            names: layers.chain(["loss".to_owned()]).collect(),
        }
    }

    pub(super) fn outside(&self) {
        self.at.store(0, Relaxed);
    }

    /// Enters the stage's layer with this number; the number after the last is the loss.
    pub(super) fn layer(&self, number: usize) {
        self.at.store(number + 1, Relaxed);
    }

    pub(super) fn loss(&self) {
        self.layer(self.names.len() - 1);
    }

    pub(super) fn name(&self) -> Option<String> {
        let place = self.at.load(Relaxed).checked_sub(1)?;
        self.names.get(place).cloned()
    }
}
