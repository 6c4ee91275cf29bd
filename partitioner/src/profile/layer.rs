//! A layer of a profile.

use super::{Footprint, MAX_TEXT, Spread};
use crate::units::{Bytes, Micros};

/// Measured times of one layer for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LayerTimes {
    /// Forward.
    pub forward: Micros,
    /// Gradient of the input alone.
    pub backward_input: Micros,
    /// Gradient of the weights alone, after the input's.
    pub backward_weight: Micros,
    /// Both gradients in one go; the sum of the two where it was not measured.
    pub backward: Option<Micros>,
    /// The forward once more before a backward; the forward's time where it was not measured.
    pub recompute: Option<Micros>,
}

impl LayerTimes {
    /// Forward and the two halves of the backward.
    pub const fn new(forward: Micros, backward_input: Micros, backward_weight: Micros) -> Self {
        Self {
            forward,
            backward_input,
            backward_weight,
            backward: None,
            recompute: None,
        }
    }

    /// The time of a backward that gives both gradients.
    pub fn joint(&self) -> Micros {
        self.backward
            .unwrap_or(self.backward_input + self.backward_weight)
    }

    /// The time of a recompute.
    pub fn again(&self) -> Micros {
        self.recompute.unwrap_or(self.forward)
    }
}

/// One layer of a profile.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LayerProfile {
    /// The layer's name.
    pub name: String,
    /// Times of a micro-batch of the profile's size.
    pub times: LayerTimes,
    /// Parameters.
    pub parameters: Bytes,
    /// Bytes for a micro-batch of the profile's size.
    pub footprint: Footprint,
    /// Times for other micro-batch sizes, by increasing size in samples.
    pub curve: Vec<(usize, LayerTimes)>,
    /// Bytes for some of the curve's sizes, by increasing size in samples. (A gradient of
    /// the weights, say, is as large for any size.)
    pub footprints: Vec<(usize, Footprint)>,
    /// How far the measurements were apart, where it is known.
    pub spread: Option<Spread>,
    /// On an asynchronous device: how long the host's thread submits each, whatever the
    /// micro-batch's size.
    pub host: Option<LayerTimes>,
    /// Why its passes cannot be put into CUDA graphs, where they cannot.
    pub no_graph: Option<String>,
}

impl LayerProfile {
    /// A layer that costs nothing but time.
    pub fn new(name: impl Into<String>, times: LayerTimes) -> Self {
        Self {
            name: name.into(),
            times,
            ..Self::default()
        }
    }

    /// The same with memory: parameters, activations and output.
    #[must_use]
    pub fn with_bytes(mut self, parameters: Bytes, activations: Bytes, output: Bytes) -> Self {
        self.parameters = parameters;
        self.footprint.activations = activations;
        self.footprint.output = output;
        self
    }

    /// The same with memory that it needs while it runs.
    #[must_use]
    pub fn with_temporary(mut self, temporary: Bytes) -> Self {
        self.footprint.temporary = temporary;
        self
    }

    /// The same with what it keeps between the halves of its backward.
    #[must_use]
    pub fn with_after_input(mut self, bytes: Bytes) -> Self {
        self.footprint.after_input = Some(bytes);
        self
    }

    /// The same with what of its activations is the loss function's behind it.
    #[must_use]
    pub fn with_loss(mut self, bytes: Bytes) -> Self {
        self.footprint.loss = bytes;
        self
    }

    /// The same with memory that it needs while it runs where the backward is in halves.
    #[must_use]
    pub fn with_halves_temporary(mut self, input: Bytes, weight: Bytes) -> Self {
        self.footprint.input_temporary = Some(input);
        self.footprint.weight_temporary = Some(weight);
        self
    }

    /// The same with how far its measurements were apart.
    #[must_use]
    pub fn with_spread(mut self, spread: Spread) -> Self {
        self.spread = Some(spread);
        self
    }

    /// The same with what the host's thread takes to submit its passes.
    #[must_use]
    pub fn with_host(mut self, times: LayerTimes) -> Self {
        self.host = Some(times);
        self
    }

    /// The same with the reason why its passes cannot be put into CUDA graphs.
    #[must_use]
    pub fn without_graphs(mut self, why: impl Into<String>) -> Self {
        let why = why.into();
        let printed = |c: char| if c.is_control() { ' ' } else { c };
        self.no_graph = Some(why.chars().take(MAX_TEXT / 4).map(printed).collect());
        self
    }

    /// The same with times for other micro-batch sizes, in any order.
    #[must_use]
    pub fn with_curve(mut self, mut curve: Vec<(usize, LayerTimes)>) -> Self {
        curve.sort_by_key(|&(batch, _)| batch);
        self.curve = curve;
        self
    }

    /// The same with bytes for some of the curve's sizes, in any order.
    #[must_use]
    pub fn with_footprints(mut self, mut footprints: Vec<(usize, Footprint)>) -> Self {
        footprints.sort_by_key(|&(batch, _)| batch);
        self.footprints = footprints;
        self
    }
}
