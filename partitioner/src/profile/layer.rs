//! A layer of a profile.

use super::{Footprint, MAX_TEXT, Spread};
use crate::units::{Bytes, Micros};

/// Measured times of one layer for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LayerTimes {
    /// Forward.
    pub forward: Micros,
    /// Input gradient only.
    pub backward_input: Micros,
    /// Weight gradient only, after the input gradient.
    pub backward_weight: Micros,
    /// Both gradients in one pass; the sum of the two if not measured.
    pub backward: Option<Micros>,
    /// Recompute of the forward before a backward; the forward's time if not measured.
    pub recompute: Option<Micros>,
}

impl LayerTimes {
    /// Creates times from the forward and the two halves of the backward.
    pub const fn new(forward: Micros, backward_input: Micros, backward_weight: Micros) -> Self {
        Self {
            forward,
            backward_input,
            backward_weight,
            backward: None,
            recompute: None,
        }
    }

    /// Time of a joint backward.
    pub fn joint(&self) -> Micros {
        self.backward
            .unwrap_or(self.backward_input + self.backward_weight)
    }

    /// Time of a recompute.
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
    /// Bytes for some of the curve's sizes, by increasing size in samples. (A weight gradient, for
    /// example, has the same size for any micro-batch.)
    pub footprints: Vec<(usize, Footprint)>,
    /// Spread of the measurements, if known.
    pub spread: Option<Spread>,
    /// On an asynchronous device: times of the host's thread to submit each pass, for any size of
    /// micro-batch.
    pub host: Option<LayerTimes>,
    /// Why its passes cannot run as CUDA graphs, if so.
    pub no_graph: Option<String>,
}

impl LayerProfile {
    /// Creates a layer that costs only time.
    pub fn new(name: impl Into<String>, times: LayerTimes) -> Self {
        Self {
            name: name.into(),
            times,
            ..Self::default()
        }
    }

    /// Sets the bytes of parameters, activations and output.
    #[must_use]
    pub fn with_bytes(mut self, parameters: Bytes, activations: Bytes, output: Bytes) -> Self {
        self.parameters = parameters;
        self.footprint.activations = activations;
        self.footprint.output = output;
        self
    }

    /// Sets the bytes that it needs while it runs.
    #[must_use]
    pub fn with_temporary(mut self, temporary: Bytes) -> Self {
        self.footprint.temporary = temporary;
        self
    }

    /// Sets the bytes that it keeps between the halves of its backward.
    #[must_use]
    pub fn with_after_input(mut self, bytes: Bytes) -> Self {
        self.footprint.after_input = Some(bytes);
        self
    }

    /// Sets the part of its activations that belongs to the loss function after it.
    #[must_use]
    pub fn with_loss(mut self, bytes: Bytes) -> Self {
        self.footprint.loss = bytes;
        self
    }

    /// Sets the bytes that it needs while the halves of its backward run.
    #[must_use]
    pub fn with_halves_temporary(mut self, input: Bytes, weight: Bytes) -> Self {
        self.footprint.input_temporary = Some(input);
        self.footprint.weight_temporary = Some(weight);
        self
    }

    /// Sets the spread of its measurements.
    #[must_use]
    pub fn with_spread(mut self, spread: Spread) -> Self {
        self.spread = Some(spread);
        self
    }

    /// Sets the times of the host's thread to submit its passes.
    #[must_use]
    pub fn with_host(mut self, times: LayerTimes) -> Self {
        self.host = Some(times);
        self
    }

    /// Sets the reason why its passes cannot run as CUDA graphs.
    #[must_use]
    pub fn without_graphs(mut self, why: impl Into<String>) -> Self {
        let why = why.into();
        let printed = |c: char| if c.is_control() { ' ' } else { c };
        self.no_graph = Some(why.chars().take(MAX_TEXT / 4).map(printed).collect());
        self
    }

    /// Sets times for other micro-batch sizes, in any order.
    #[must_use]
    pub fn with_curve(mut self, mut curve: Vec<(usize, LayerTimes)>) -> Self {
        curve.sort_by_key(|&(batch, _)| batch);
        self.curve = curve;
        self
    }

    /// Sets bytes for some of the curve's sizes, in any order.
    #[must_use]
    pub fn with_footprints(mut self, mut footprints: Vec<(usize, Footprint)>) -> Self {
        footprints.sort_by_key(|&(batch, _)| batch);
        self.footprints = footprints;
        self
    }
}
