//! Bytes of a layer at one size of micro-batch.

use crate::json::MAX_BYTES;
use crate::units::Bytes;

/// Memory of a layer for one micro-batch of some size, without parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes that the layer keeps from its forward to its backward.
    #[doc(alias = "stash")]
    #[doc(alias = "saved tensors")]
    pub activations: Bytes,
    /// Bytes of activations and gradients that it keeps from its input gradient to its weight
    /// gradient, if these are separate; the activations if not measured.
    pub after_input: Option<Bytes>,
    /// Part of the activations that belongs to the loss function, after the last layer: a stage
    /// that recomputes its layers keeps it nevertheless.
    pub loss: Bytes,
    /// Bytes sent to the next layer: its output and passing skips; the gradients that come back are
    /// as large.
    #[doc(alias = "p2p")]
    pub output: Bytes,
    /// Additional bytes that the layer needs while it runs.
    #[doc(alias = "workspace")]
    pub temporary: Bytes,
    /// Same as `temporary` for the input half of the backward; `temporary` if not measured.
    pub input_temporary: Option<Bytes>,
    /// Same as `temporary` for the weight half, in addition to the bytes kept for it; `temporary`
    /// if not measured.
    pub weight_temporary: Option<Bytes>,
}

impl Footprint {
    /// Returns the first field that exceeds the limit of a profile.
    pub(super) fn too_large(&self) -> Option<(&'static str, Bytes)> {
        [
            ("activation_bytes", self.activations),
            ("after_input_bytes", self.after_input.unwrap_or_default()),
            ("loss_bytes", self.loss),
            ("output_bytes", self.output),
            ("temporary_bytes", self.temporary),
            (
                "input_temporary_bytes",
                self.input_temporary.unwrap_or_default(),
            ),
            (
                "weight_temporary_bytes",
                self.weight_temporary.unwrap_or_default(),
            ),
        ]
        .into_iter()
        .find(|(_, bytes)| bytes.0 > MAX_BYTES)
    }
}
