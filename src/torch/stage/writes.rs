//! In-place changes by layers to tensors that others may need.

use tch::Tensor;

use crate::error::TorchError;
use crate::ffi;

/// Tensors that a segment's layers change in place though others may need them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Writes {
    /// Inputs of the segment.
    inputs: bool,
    /// Values stashed by its layers.
    stashes: bool,
    /// Parameters and buffers that its layers have output.
    own: bool,
}

impl Writes {
    pub(super) fn new(inputs: bool, stashes: bool, own: bool) -> Self {
        Self {
            inputs,
            stashes,
            own,
        }
    }

    pub(super) fn to_inputs(self) -> bool {
        self.inputs
    }

    pub(super) fn to_stashes(self) -> bool {
        self.stashes
    }

    pub(super) fn to_own(self) -> bool {
        self.own
    }

    pub(super) fn any(self) -> bool {
        self != Self::default()
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            inputs: self.inputs || other.inputs,
            stashes: self.stashes || other.stashes,
            own: self.own || other.own,
        }
    }

    /// Replaces the entry for inputs.
    pub(super) fn with_inputs(self, inputs: bool) -> Self {
        Self { inputs, ..self }
    }
}

/// Tensors, and how often each had been changed when the watch began (PyTorch's version
/// counter).
#[doc(alias = "version counter")]
#[derive(Debug, Default)]
pub(super) struct Watched(Vec<(Tensor, i64)>);

impl Watched {
    /// Begins to watch these.
    pub(super) fn new<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<Self, TorchError> {
        let watched = tensors.map(|tensor| Ok((tensor.shallow_clone(), ffi::changes(tensor)?)));
        Ok(Self(watched.collect::<Result<_, TorchError>>()?))
    }

    /// Another one, which had been changed so often when the watch began.
    pub(super) fn add(&mut self, tensor: &Tensor, changes: i64) {
        self.0.push((tensor.shallow_clone(), changes));
    }

    /// Returns whether one of them has been written to.
    pub(super) fn changed(&self) -> Result<bool, TorchError> {
        for (tensor, before) in &self.0 {
            if ffi::changes(tensor)? != *before {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
