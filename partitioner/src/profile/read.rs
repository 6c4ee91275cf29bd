//! Parser of `profile.json`.

use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::all_cores::AllCores;
use super::spread::{MAX_REPEATS, SPREAD_LIMIT};
use super::{
    Footprint, LayerProfile, LayerTimes, MAX_BATCH, MAX_DOUBTS, MAX_LAYERS, MAX_POINTS, MAX_TEXT,
    MAX_THREADS, PROFILE_VERSION, Profile, Spread,
};
use crate::cost::{HostLink, Link};
use crate::json::{
    FileFormat, List, MAX_BYTES, MICROS_LIMIT, Number, Object, ReadError, Text, Whole, parse_file,
    read_file,
};
use crate::model::ModelId;
use crate::units::Bytes;

type Amount = Whole<0, MAX_BYTES>;
type Time = Number<MICROS_LIMIT>;
type Batch = Whole<1, { MAX_BATCH as u64 }>;
/// Doubts about the measurements of a profile, or of a plan made from it.
pub(crate) type Doubts = List<Text<MAX_TEXT>, 0, MAX_DOUBTS>;

const FORMAT: FileFormat = FileFormat {
    version: PROFILE_VERSION,
    own: "layers",
    other: (
        "balance",
        "it is a plan, not a profile: `gpipe-rs profile` makes those",
    ),
    none: "it is no profile: `gpipe-rs profile` makes those",
};

/// A field and the rule that it breaks.
type Broken = (String, String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFields {
    #[serde(rename = "version")]
    _version: IgnoredAny,
    device: Text<MAX_TEXT>,
    batch: Batch,
    libtorch: Option<Text<MAX_TEXT>>,
    measured: Option<Text<MAX_TEXT>>,
    precision: Option<Text<MAX_TEXT>>,
    kernels: Option<Text<MAX_TEXT>>,
    input_bytes: Option<Amount>,
    fewest_samples: Option<Batch>,
    model: Option<ModelId>,
    link: Option<Object<LinkFields>>,
    host_link: Option<Object<HostLinkFields>>,
    graph_replay_us: Option<Time>,
    doubts: Option<Doubts>,
    all_cores: Option<Object<AllCoresFields>>,
    layers: List<Object<LayerFields>, 1, MAX_LAYERS>,
}

/// Costs in one stage with all cores.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllCoresFields {
    threads: Whole<1, { MAX_THREADS as u64 }>,
    layers: List<Object<LayerFields>, 1, MAX_LAYERS>,
}

/// Link between two of the devices.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LinkFields {
    latency_us: Time,
    bytes_per_second: Option<Whole<1, MAX_BYTES>>,
}

/// Links between a device and the host's memory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostLinkFields {
    to_host: Object<LinkFields>,
    to_device: Object<LinkFields>,
}

/// Times of the host's thread for a layer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "units are in the file's names")]
struct HostFields {
    forward_us: Time,
    backward_input_us: Time,
    backward_weight_us: Time,
    backward_us: Option<Time>,
    recompute_us: Option<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerFields {
    name: Text<MAX_TEXT>,
    forward_us: Time,
    backward_input_us: Time,
    backward_weight_us: Time,
    backward_us: Option<Time>,
    recompute_us: Option<Time>,
    parameter_bytes: Amount,
    activation_bytes: Amount,
    after_input_bytes: Option<Amount>,
    loss_bytes: Option<Amount>,
    output_bytes: Amount,
    temporary_bytes: Option<Amount>,
    input_temporary_bytes: Option<Amount>,
    weight_temporary_bytes: Option<Amount>,
    curve: Option<List<Object<PointFields>, 0, MAX_POINTS>>,
    repeats: Option<Whole<0, { MAX_REPEATS as u64 }>>,
    forward_spread: Option<Number<SPREAD_LIMIT>>,
    backward_spread: Option<Number<SPREAD_LIMIT>>,
    host: Option<Object<HostFields>>,
    no_graph: Option<Text<MAX_TEXT>>,
}

/// A layer at another size of micro-batch.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PointFields {
    batch: Batch,
    forward_us: Time,
    backward_input_us: Time,
    backward_weight_us: Time,
    backward_us: Option<Time>,
    recompute_us: Option<Time>,
    activation_bytes: Option<Amount>,
    after_input_bytes: Option<Amount>,
    loss_bytes: Option<Amount>,
    output_bytes: Option<Amount>,
    temporary_bytes: Option<Amount>,
    input_temporary_bytes: Option<Amount>,
    weight_temporary_bytes: Option<Amount>,
}

impl Profile {
    /// Reads a profile from a file.
    ///
    /// # Errors
    /// If the file cannot be read, is larger than 64 MiB, or breaks a rule of the format; the
    /// error names file, field and rule.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let text = read_file(path)?;
        Self::from_json(text, &path.display().to_string())
    }

    /// Parses a profile from JSON; errors call it `file`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_json(text: impl AsRef<[u8]>, file: &str) -> Result<Self, ReadError> {
        let fields: ProfileFields = parse_file(text.as_ref(), file, &FORMAT)?;
        let all_cores = fields.all_cores.map(|Object(own)| {
            let layers = layers(own.layers.0, file, "all_cores.layers")?;
            let threads = own.threads.size();
            Ok(AllCores { threads, layers })
        });
        let link = fields.link.map(|Object(fields)| fields.link()).transpose();
        let host_link = fields.host_link.map(|Object(fields)| fields.link());
        let host_link = host_link.transpose();
        let profile = Self {
            device: fields.device.0,
            batch: fields.batch.size(),
            layers: layers(fields.layers.0, file, "layers")?,
            all_cores: all_cores.transpose()?,
            input: bytes(fields.input_bytes),
            fewest_samples: fields.fewest_samples.map_or(1, |fewest| fewest.size()),
            libtorch: fields.libtorch.map(|text| text.0),
            measured: fields.measured.map(|text| text.0),
            precision: fields.precision.map(|text| text.0),
            kernels: fields.kernels.map(|text| text.0),
            link: link.map_err(|rule| ReadError::new(file, "link.bytes_per_second", rule))?,
            host_link: host_link.map_err(|rule| ReadError::new(file, "host_link", rule))?,
            graph_replay: fields.graph_replay_us.map(Time::micros),
            model: fields.model,
            doubts: fields.doubts.map(|doubts| doubts.map(|text| text.0)),
        };
        profile.checked(file)
    }
}

fn layers(
    fields: Vec<Object<LayerFields>>,
    file: &str,
    list: &str,
) -> Result<Vec<LayerProfile>, ReadError> {
    let layer = |(index, Object(fields)): (usize, Object<LayerFields>)| {
        let layer = fields.layer();
        layer
            .map_err(|(field, rule)| ReadError::new(file, format!("{list}[{index}].{field}"), rule))
    };
    fields.into_iter().enumerate().map(layer).collect()
}

/// Returns the amount, 0 for none.
fn bytes(amount: Option<Amount>) -> Bytes {
    amount.map_or(Bytes::ZERO, Amount::bytes)
}

fn times(forward: Time, input: Time, weight: Time, others: [Option<Time>; 2]) -> LayerTimes {
    let [backward, recompute] = others.map(|time| time.map(Time::micros));
    LayerTimes {
        backward,
        recompute,
        ..LayerTimes::new(forward.micros(), input.micros(), weight.micros())
    }
}

impl LinkFields {
    pub(crate) fn link(self) -> Result<Link, crate::ValueError> {
        let latency = self.latency_us.micros();
        match self.bytes_per_second {
            Some(bandwidth) => Link::new(bandwidth.bytes(), latency),
            None => Ok(Link::without_copy(latency)),
        }
    }
}

impl HostLinkFields {
    fn link(self) -> Result<HostLink, crate::ValueError> {
        Ok(HostLink {
            to_host: self.to_host.0.link()?,
            to_device: self.to_device.0.link()?,
        })
    }
}

impl HostFields {
    fn times(&self) -> LayerTimes {
        times(
            self.forward_us,
            self.backward_input_us,
            self.backward_weight_us,
            [self.backward_us, self.recompute_us],
        )
    }
}

impl LayerFields {
    fn layer(self) -> Result<LayerProfile, Broken> {
        let spread = self.spread()?;
        let (mut curve, mut footprints) = (Vec::new(), Vec::new());
        let points = self.curve.map_or(Vec::new(), |points| points.0);
        for (index, Object(point)) in points.into_iter().enumerate() {
            let footprint = point.footprint();
            let footprint =
                footprint.map_err(|(field, rule)| (format!("curve[{index}].{field}"), rule))?;
            footprints.extend(footprint.map(|footprint| (point.batch.size(), footprint)));
            curve.push((point.batch.size(), point.times()));
        }
        Ok(LayerProfile {
            name: self.name.0,
            times: times(
                self.forward_us,
                self.backward_input_us,
                self.backward_weight_us,
                [self.backward_us, self.recompute_us],
            ),
            parameters: self.parameter_bytes.bytes(),
            footprint: Footprint {
                activations: self.activation_bytes.bytes(),
                after_input: self.after_input_bytes.map(Amount::bytes),
                loss: bytes(self.loss_bytes),
                output: self.output_bytes.bytes(),
                temporary: bytes(self.temporary_bytes),
                input_temporary: self.input_temporary_bytes.map(Amount::bytes),
                weight_temporary: self.weight_temporary_bytes.map(Amount::bytes),
            },
            curve,
            footprints,
            spread,
            host: self.host.map(|Object(fields)| fields.times()),
            no_graph: self.no_graph.map(|text| text.0),
        })
    }

    /// Reads the spread, whose three fields go together.
    fn spread(&self) -> Result<Option<Spread>, Broken> {
        let missing = |field: &str| (field.to_owned(), "is missing".to_owned());
        let alone = |field: &str| Err((field.to_owned(), "must come with repeats".to_owned()));
        match (self.repeats, self.forward_spread, self.backward_spread) {
            (None, None, None) => Ok(None),
            (None, Some(_), _) => alone("forward_spread"),
            (None, None, Some(_)) => alone("backward_spread"),
            (Some(repeats), forward, backward) => {
                let forward = forward.ok_or_else(|| missing("forward_spread"))?;
                let backward = backward.ok_or_else(|| missing("backward_spread"))?;
                let spread = Spread::new(repeats.size(), forward.get(), backward.get());
                Ok(Some(spread))
            }
        }
    }
}

impl PointFields {
    fn times(&self) -> LayerTimes {
        times(
            self.forward_us,
            self.backward_input_us,
            self.backward_weight_us,
            [self.backward_us, self.recompute_us],
        )
    }

    /// Reads the bytes, all of which require those of the activations.
    fn footprint(&self) -> Result<Option<Footprint>, Broken> {
        let Some(activations) = self.activation_bytes else {
            let others = [
                ("after_input_bytes", self.after_input_bytes),
                ("loss_bytes", self.loss_bytes),
                ("output_bytes", self.output_bytes),
                ("temporary_bytes", self.temporary_bytes),
                ("input_temporary_bytes", self.input_temporary_bytes),
                ("weight_temporary_bytes", self.weight_temporary_bytes),
            ];
            return match others.into_iter().find(|(_, amount)| amount.is_some()) {
                Some((field, _)) => Err((
                    field.to_owned(),
                    "must come with activation_bytes".to_owned(),
                )),
                None => Ok(None),
            };
        };
        let missing = || ("output_bytes".to_owned(), "is missing".to_owned());
        Ok(Some(Footprint {
            activations: activations.bytes(),
            after_input: self.after_input_bytes.map(Amount::bytes),
            loss: bytes(self.loss_bytes),
            output: self.output_bytes.ok_or_else(missing)?.bytes(),
            temporary: bytes(self.temporary_bytes),
            input_temporary: self.input_temporary_bytes.map(Amount::bytes),
            weight_temporary: self.weight_temporary_bytes.map(Amount::bytes),
        }))
    }
}
