//! Bytes of a layer at one size of micro-batch.

use crate::json::MAX_BYTES;
use crate::units::Bytes;

/// What a layer takes of memory for one micro-batch of some size, parameters apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// What the layer keeps from its forward to its backward.
    #[doc(alias = "stash")]
    #[doc(alias = "saved tensors")]
    pub activations: Bytes,
    /// What of that, and of gradients, it keeps from the gradient of its input to that of
    /// its weights, where these are two; the activations where it was not measured.
    pub after_input: Option<Bytes>,
    /// What of the activations is the loss function's own, behind the last layer: a stage that
    /// recomputes its layers keeps it all the same.
    pub loss: Bytes,
    /// What is sent to the next layer: its output and the skips that pass by; the gradients
    /// that come back are as large.
    #[doc(alias = "p2p")]
    pub output: Bytes,
    /// What the layer needs besides while it runs, and frees again.
    #[doc(alias = "workspace")]
    pub temporary: Bytes,
    /// The same until the input half of the backward is done; `temporary` where it was not
    /// measured.
    pub input_temporary: Option<Bytes>,
    /// The same of the weight half, on top of what is kept for it; `temporary` where it was
    /// not measured.
    pub weight_temporary: Option<Bytes>,
}

impl Footprint {
    /// The first of its fields that is beyond what a profile may name.
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
