//! Sample inputs to profile with.

use std::fmt;
use std::sync::Arc;

use crate::{LossFn, Values};

/// A sample to profile with, as in training: one micro-batch of the largest size.
///
/// Costs may depend on the values (tokens out of range fail, denormal numbers are slow), so real
/// ones are best.
pub struct Sample {
    pub(super) input: Values,
    pub(super) loss: Option<(Values, Arc<dyn LossFn>)>,
}

impl Sample {
    /// Creates a sample from inputs of the model; dimension 0 counts samples.
    pub fn new(input: impl Into<Values>) -> Self {
        Self {
            input: input.into(),
            loss: None,
        }
    }

    /// Adds targets and the loss function: its time and memory then belong to the last layer, as in
    /// training.
    #[must_use]
    pub fn with_loss(mut self, target: impl Into<Values>, loss: impl LossFn) -> Self {
        self.loss = Some((target.into(), Arc::new(loss)));
        self
    }
}

/// The clone shares the tensors.
impl Clone for Sample {
    fn clone(&self) -> Self {
        let with_loss =
            |(target, loss): &(Values, Arc<dyn LossFn>)| (target.shallow_clone(), Arc::clone(loss));
        Self {
            input: self.input.shallow_clone(),
            loss: self.loss.as_ref().map(with_loss),
        }
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample")
            .field("input", &self.input)
            .field("loss", &self.loss.is_some())
            .finish()
    }
}
