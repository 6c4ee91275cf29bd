//! What a stage that recomputes keeps of a micro-batch, in the host's memory.
//!
//! On an accelerator it leaves on a side stream while the next action computes, into
//! page-locked memory, and comes back on another when its backward begins.

use tch::Tensor;

use super::TorchStage;
use super::flight::Inputs;
use crate::torch::error::TorchError;
use crate::torch::streams::Parcel;
use crate::torch::values::Values;

/// A segment's inputs, elsewhere.
#[derive(Debug)]
pub(super) struct Stowed {
    /// The main values, then one a skip.
    parcel: Parcel,
    skips: Vec<usize>,
}

impl TorchStage {
    /// Sends a segment's inputs to the host's memory.
    pub(super) fn stow(&self, inputs: Inputs) -> Result<Stowed, TorchError> {
        let skips = inputs.skips.iter().map(|(skip, _)| *skip).collect();
        let skipping = inputs.skips.into_iter().map(|(_, value)| value);
        let values: Values = inputs.main.into_iter().chain(skipping).collect();
        Ok(Stowed {
            parcel: self.lane.stow(values)?,
            skips,
        })
    }

    /// Brings them back.
    pub(super) fn fetch(&self, stowed: Stowed) -> Result<Inputs, TorchError> {
        let values = self.lane.receive(stowed.parcel)?;
        self.lane.reads(values.present());
        let mut values: Vec<Option<Tensor>> = values.into_iter().collect();
        let skipping = values.split_off(values.len() - stowed.skips.len());
        Ok(Inputs {
            main: values.into_iter().collect(),
            skips: stowed.skips.into_iter().zip(skipping).collect(),
        })
    }
}
