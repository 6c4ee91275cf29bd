//! Optimizers over a whole pipeline.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::torch::OptimizerKind;

/// Updates a pipeline's parameters from their accumulated gradients.
///
/// What it remembers of each parameter lives beside the parameter, on the
/// stage's own device. `Optimizer::step` uses the gradients up: the next step
/// starts from none.
#[derive(Debug)]
pub struct Optimizer {
    id: u64,
    kind: OptimizerKind,
}

impl Optimizer {
    /// An optimizer that remembers nothing yet.
    pub fn new(kind: impl Into<OptimizerKind>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Only uniqueness matters, not order.
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            kind: kind.into(),
        }
    }

    /// Learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.kind.lr()
    }

    /// Sets the learning rate of the next step.
    pub fn set_lr(&mut self, lr: f64) {
        self.kind.set_lr(lr);
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn kind(&self) -> OptimizerKind {
        self.kind
    }
}
