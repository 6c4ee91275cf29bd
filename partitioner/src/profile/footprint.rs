//! Bytes of a layer at one size of micro-batch.

use crate::json::MAX_BYTES;
use crate::units::Bytes;

/// What a layer takes of memory for one micro-batch of some size, parameters apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// As [`activations`](super::LayerProfile::activations).
    pub activations: Bytes,
    /// As [`after_input`](super::LayerProfile::after_input).
    pub after_input: Option<Bytes>,
    /// As [`output`](super::LayerProfile::output).
    pub output: Bytes,
    /// As [`temporary`](super::LayerProfile::temporary).
    pub temporary: Bytes,
    /// As [`input_temporary`](super::LayerProfile::input_temporary).
    pub input_temporary: Option<Bytes>,
    /// As [`weight_temporary`](super::LayerProfile::weight_temporary).
    pub weight_temporary: Option<Bytes>,
}

impl Footprint {
    /// The first of its fields that is beyond what a profile may name.
    pub(super) fn too_large(&self) -> Option<(&'static str, Bytes)> {
        [
            ("activation_bytes", self.activations),
            ("after_input_bytes", self.after_input.unwrap_or_default()),
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
