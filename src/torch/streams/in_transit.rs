//! Values on their way between stages (p2p).

use super::backend::Backend;
use super::ids::{Event, MemorySpace};
use crate::torch::error::TorchError;
use crate::torch::values::Values;

/// Values that have been sent, and the event that says when they have arrived.
#[doc(alias = "p2p")]
#[derive(Debug, Default)]
pub(crate) struct InTransit {
    pub(crate) values: Values,
    /// Their memory space; none in a pipeline without accelerators.
    pub(super) at: Option<MemorySpace>,
    /// The event that a user of the values has to wait for.
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

    /// Lets the caller use the values in its current stream (rule 4).
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
