//! What travels between stages.

use super::backend::{Backend, Event, MemorySpace};
use crate::torch::error::TorchError;
use crate::torch::values::Values;

/// Values on their way, and when they are there.
#[derive(Debug, Default)]
pub(crate) struct InTransit {
    pub(crate) values: Values,
    /// Where they are; none for values that nobody has streams for.
    pub(super) at: Option<MemorySpace>,
    /// What whoever uses them has to wait for.
    pub(super) ready: Option<Event>,
}

impl From<Values> for InTransit {
    fn from(values: Values) -> Self {
        Self {
            values,
            at: None,
            ready: None,
        }
    }
}

impl InTransit {
    pub(super) fn new(values: Values, at: MemorySpace, ready: Option<Event>) -> Self {
        Self {
            values,
            at: Some(at),
            ready,
        }
    }

    /// The caller may use what came back, on its own current stream.
    pub(crate) fn hand_out(&self, backend: &Backend) -> Result<(), TorchError> {
        let Some(at @ MemorySpace::Accelerator(_)) = self.at else {
            return Ok(());
        };
        for tensor in self.values.present() {
            if let MemorySpace::Accelerator(device) = backend.space_of(tensor, at) {
                backend.used_by(tensor, backend.current(device)?)?;
            }
        }
        backend.reads("the caller", at, self.values.present());
        Ok(())
    }
}
