//! Measured costs of a model's layers: `profile.json`.
//!
//! All amounts are those of one micro-batch of `batch` samples. For other sizes times and bytes
//! follow the layer's measured curve if it has one, else they scale linearly.

mod all_cores;
mod check;
mod footprint;
mod layer;
mod read;
mod scale;
mod scale_to;
mod spread;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use read::LinkFields;
pub(crate) use write::link_value;

use all_cores::AllCores;

use crate::cost::{HostLink, Link};
use crate::json::{MAX_BYTES, MAX_MICROS, ReadError};
use crate::model::ModelId;
use crate::units::{Bytes, Micros};

pub(crate) use read::Doubts;

pub use footprint::Footprint;
pub use layer::{LayerProfile, LayerTimes};
pub use scale::LayerCost;
pub use scale_to::ScaleError;
pub use spread::Spread;

/// Version of `profile.json` that this build reads and writes.
pub const PROFILE_VERSION: u64 = 1;
/// Host time of a CUDA graph's replay with its copies, if not measured: launches of a graph and of
/// the few kernels around it, some 4 µs each.
pub const GRAPH_REPLAY_MICROS: f64 = 25.0;
/// Most layers of a profile.
pub const MAX_LAYERS: usize = 100_000;
/// Largest micro-batch of a profile, in samples.
pub const MAX_BATCH: usize = 1 << 24;
/// Most points of a layer's curve.
const MAX_POINTS: usize = 64;
/// Most bytes of a name or a remark.
pub(crate) const MAX_TEXT: usize = 4096;
/// Most threads of a stage.
const MAX_THREADS: usize = 1 << 16;
/// Most doubts about a profile's measurements.
const MAX_DOUBTS: usize = 64;
/// Most bytes of one field over all layers.
const MAX_TOTAL: u64 = 1 << 53;

/// A model's layers with their measured costs.
///
/// # Examples
/// ```
/// use gpipe_partitioner::Profile;
///
/// let text = r#"{"version": 1, "device": "cpu", "batch": 8, "layers": [
///     {"name": "block.0", "forward_us": 100, "backward_input_us": 120,
///      "backward_weight_us": 80, "parameter_bytes": 4096,
///      "activation_bytes": 65536, "output_bytes": 8192}]}"#;
/// let profile = Profile::from_json(text, "profile.json")?;
/// assert_eq!(profile.layers()[0].times.joint().get(), 200.0);
///
/// let error = Profile::from_json(text.replace("100", "-1"), "profile.json").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "profile.json: layers[0].forward_us: must be a number from 0 to 1000000000000, is -1"
/// );
/// # Ok::<(), gpipe_partitioner::ReadError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    device: String,
    batch: usize,
    layers: Vec<LayerProfile>,
    input: Bytes,
    fewest_samples: usize,
    libtorch: Option<String>,
    measured: Option<String>,
    precision: Option<String>,
    kernels: Option<String>,
    link: Option<Link>,
    host_link: Option<HostLink>,
    graph_replay: Option<Micros>,
    model: Option<ModelId>,
    doubts: Option<Vec<String>>,
    all_cores: Option<AllCores>,
}

impl Profile {
    /// Creates a profile of `layers` measured on `device` with micro-batches of `batch` samples.
    ///
    /// # Errors
    /// A [`ReadError`] that names the field and the rule, as when reading a file: no layer or
    /// too many, a batch of 0, an amount beyond its range, a curve that does not increase.
    pub fn new(
        device: impl Into<String>,
        batch: usize,
        layers: Vec<LayerProfile>,
    ) -> Result<Self, ReadError> {
        let profile = Self {
            device: device.into(),
            batch,
            layers,
            input: Bytes::ZERO,
            fewest_samples: 1,
            libtorch: None,
            measured: None,
            precision: None,
            kernels: None,
            link: None,
            host_link: None,
            graph_replay: None,
            model: None,
            doubts: None,
            all_cores: None,
        };
        profile.checked("profile")
    }

    /// Sets the size of the model's input for one micro-batch.
    #[must_use]
    pub fn with_input(mut self, input: Bytes) -> Self {
        self.input = Bytes(input.0.min(MAX_BYTES));
        self
    }

    /// Sets the fewest samples of a micro-batch in training, from 1 to [`MAX_BATCH`]: a batch norm,
    /// for example, cannot train on a single value per channel.
    #[must_use]
    pub fn with_fewest_samples(mut self, samples: usize) -> Self {
        self.fewest_samples = samples.clamp(1, MAX_BATCH);
        self
    }

    /// Sets the version of libtorch and a description of the measurement.
    #[must_use]
    pub fn with_origin(mut self, libtorch: Option<String>, measured: Option<String>) -> Self {
        let short = |text: String| text.chars().take(MAX_TEXT / 4).collect();
        self.libtorch = libtorch.map(short);
        self.measured = measured.map(short);
        self
    }

    /// Sets the number type of the layers' computations, such as `bf16`.
    #[must_use]
    pub fn with_precision(mut self, name: &str) -> Self {
        self.precision = Some(name.chars().take(MAX_TEXT / 4).collect());
        self
    }

    /// Sets the kernels of the layers' computations, if not libtorch's own choice.
    #[must_use]
    pub fn with_kernels(mut self, name: &str) -> Self {
        self.kernels = Some(name.chars().take(MAX_TEXT / 4).collect());
        self
    }

    /// Sets the measured model.
    #[must_use]
    pub fn with_model(mut self, model: ModelId) -> Self {
        self.model = Some(model);
        self
    }

    /// Sets the link between two of the devices.
    #[must_use]
    pub fn with_link(mut self, link: Link) -> Self {
        self.link = Some(storable(link));
        self
    }

    /// Sets the link between a device and the host's memory.
    #[must_use]
    pub fn with_host_link(mut self, link: HostLink) -> Self {
        self.host_link = Some(HostLink {
            to_host: storable(link.to_host),
            to_device: storable(link.to_device),
        });
        self
    }

    /// Sets the host time of the replay of a CUDA graph.
    #[must_use]
    pub fn with_graph_replay(mut self, time: Micros) -> Self {
        self.graph_replay = Some(Micros::saturating(time.get().min(MAX_MICROS)));
        self
    }

    /// Sets the doubts about the measurements, a sentence each; empty if there are none.
    #[must_use]
    pub fn with_doubts(mut self, doubts: Vec<String>) -> Self {
        let short = |doubt: String| doubt.chars().take(MAX_TEXT / 4).collect();
        self.doubts = Some(doubts.into_iter().take(MAX_DOUBTS).map(short).collect());
        self
    }

    /// The kind of measured device, such as `cpu`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The measured device, if it is a CUDA device.
    pub fn accelerator(&self) -> Option<&str> {
        self.device.starts_with("cuda").then_some(&self.device)
    }

    /// Samples in the measured micro-batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The layers, in order.
    pub fn layers(&self) -> &[LayerProfile] {
        &self.layers
    }

    /// The size of the model's input for one micro-batch; 0 if unknown.
    pub fn input(&self) -> Bytes {
        self.input
    }

    /// The fewest samples of a micro-batch in training; 1 if unknown.
    pub fn fewest_samples(&self) -> usize {
        self.fewest_samples
    }

    /// The version of libtorch, if known.
    pub fn libtorch(&self) -> Option<&str> {
        self.libtorch.as_deref()
    }

    /// Description of the measurement, if known.
    pub fn measured(&self) -> Option<&str> {
        self.measured.as_deref()
    }

    /// The number type of the layers' computations, if known.
    pub fn precision(&self) -> Option<&str> {
        self.precision.as_deref()
    }

    /// The kernels of the layers' computations, if not libtorch's own choice.
    pub fn kernels(&self) -> Option<&str> {
        self.kernels.as_deref()
    }

    /// The measured model, if known.
    pub fn model(&self) -> Option<&ModelId> {
        self.model.as_ref()
    }

    /// The link between two of the devices, if measured.
    pub fn link(&self) -> Option<Link> {
        self.link
    }

    /// The link between a device and the host's memory, if measured.
    pub fn host_link(&self) -> Option<HostLink> {
        self.host_link
    }

    /// Host time of the replay of a CUDA graph with its copies; [`GRAPH_REPLAY_MICROS`] if not
    /// measured.
    pub fn graph_replay(&self) -> Micros {
        (self.graph_replay).unwrap_or(Micros::saturating(GRAPH_REPLAY_MICROS))
    }

    /// Whether the host's times are known for every layer.
    pub fn knows_host(&self) -> bool {
        self.layers.iter().all(|layer| layer.host.is_some())
    }

    /// Whether any layer can run as a CUDA graph, as far as known.
    pub fn captures(&self) -> bool {
        let captures = |layer: &LayerProfile| layer.host.is_some() && layer.no_graph.is_none();
        self.layers.iter().any(captures)
    }

    /// Doubts about the measurements; none if they were not examined.
    pub fn doubts(&self) -> Option<&[String]> {
        self.doubts.as_deref()
    }

    /// Parameter bytes per layer, for [`Partition::by_weight`](crate::Partition::by_weight).
    pub fn parameter_bytes(&self) -> Vec<u64> {
        self.layers.iter().map(|layer| layer.parameters.0).collect()
    }
}

/// Clamps the link to values that a file can hold.
fn storable(link: Link) -> Link {
    let latency = Micros::saturating(link.latency().get().min(MAX_MICROS));
    let bandwidth = link.bandwidth().map(|bytes| Bytes(bytes.0.min(MAX_BYTES)));
    let copying = bandwidth.and_then(|bytes| Link::new(bytes, latency).ok());
    copying.unwrap_or_else(|| Link::without_copy(latency))
}
