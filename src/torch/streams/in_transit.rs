//! What travels between stages.

use super::backend::{Event, Layer, Place};
use crate::torch::error::TorchError;
use crate::torch::values::Values;

/// Values on their way, and when they are there.
#[derive(Debug, Default)]
pub(crate) struct Parcel {
    pub(crate) values: Values,
    /// Where they are; none for values that nobody has streams for.
    pub(super) at: Option<Place>,
    /// What whoever uses them has to wait for.
    pub(super) ready: Option<Event>,
}

impl From<Values> for Parcel {
    fn from(values: Values) -> Self {
        Self {
            values,
            at: None,
            ready: None,
        }
    }
}

impl Parcel {
    pub(super) fn new(values: Values, at: Place, ready: Option<Event>) -> Self {
        Self {
            values,
            at: Some(at),
            ready,
        }
    }

    /// The caller may use what came back, on its own current stream.
    pub(crate) fn hand_out(&self, layer: &Layer) -> Result<(), TorchError> {
        let Some(at @ Place::Accelerator(_)) = self.at else {
            return Ok(());
        };
        for tensor in self.values.present() {
            if let Place::Accelerator(device) = layer.place(tensor, at) {
                layer.used_by(tensor, layer.current(device)?)?;
            }
        }
        layer.reads("the caller", at, self.values.present());
        Ok(())
    }
}
