//! Parser of `plan.json`.

use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::More;
use super::options::MAX_MICRO;
use super::{Alternative, PLAN_VERSION, Plan};
use crate::builtin::{ScheduleError, ScheduleKind};
use crate::ids::DeviceId;
use crate::json::{
    FileFormat, List, Number, Object, ReadError, Text, Whole, parse_file, read_file,
};
use crate::machine::{MAX_DEVICES, Neighbours, Nodes};
use crate::model::ModelId;
use crate::partition::Partition;
use crate::profile::{Doubts, LinkFields, MAX_BATCH, MAX_LAYERS, MAX_TEXT};
use crate::schedule::Schedule;
use crate::words::count;

/// Longest step, in microseconds: three decades.
const MAX_STEP: u64 = 1_000_000_000_000_000;
/// Highest peak of a device.
const MAX_PEAK: u64 = 1 << 60;
/// Most runners-up.
const MAX_ALTERNATIVES: usize = 10_000;
/// Longest list of actions, in bytes.
const MAX_ROW: usize = 1 << 25;
/// Most chunks per device.
const MAX_CHUNKS: u64 = 1 << 12;

const FORMAT: FileFormat = FileFormat {
    version: PLAN_VERSION,
    own: "balance",
    other: (
        "layers",
        "it is a profile, not a plan: `gpipe-rs plan` makes one from it",
    ),
    none: "it is no plan: `gpipe-rs plan` makes those",
};

type Layers = Whole<1, { MAX_LAYERS as u64 }>;
type Chunks = Whole<1, MAX_CHUNKS>;
type Micro = Whole<1, { MAX_MICRO as u64 }>;
type Time = Number<MAX_STEP>;
type Fraction = Number<1>;
type Peak = Whole<0, MAX_PEAK>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFields {
    #[serde(rename = "version")]
    _version: IgnoredAny,
    // Plans of the first builds have neither.
    model: Option<ModelId>,
    doubts: Option<Doubts>,
    precision: Option<Text<MAX_TEXT>>,
    kernels: Option<Text<MAX_TEXT>>,
    device: Option<Text<MAX_TEXT>>,
    balance: List<Layers, 1, MAX_LAYERS>,
    placement: List<Whole<0, { MAX_DEVICES as u64 }>, 1, MAX_LAYERS>,
    recompute: List<bool, 1, MAX_LAYERS>,
    // Omitted if no stage offloads, as in plans of the first builds.
    offload: Option<List<bool, 1, MAX_LAYERS>>,
    cuda_graphs: Option<bool>,
    schedule: NamedSchedule,
    // Omitted if there is one of either, as in plans of the first builds.
    replicas: Option<Whole<1, { MAX_DEVICES as u64 }>>,
    nodes: Option<Object<NodesFields>>,
    // For clusters only.
    tensor_parallel: Option<Whole<1, { MAX_DEVICES as u64 }>>,
    neighbours: Option<NamedNeighbours>,
    shard_optimizer: Option<bool>,
    lower_bound_us: Option<Time>,
    limit: Option<Text<MAX_TEXT>>,
    more: Option<List<Object<MoreFields>, 0, MAX_ALTERNATIVES>>,
    micro_batches: Micro,
    chunks: Chunks,
    micro_batch_size: Whole<1, { MAX_BATCH as u64 * 64 }>,
    // Missing in plans of the first builds.
    batch: Option<Whole<1, { MAX_BATCH as u64 * 64 }>>,
    bottleneck_us: Time,
    step_us: Time,
    bubble_fraction: Fraction,
    actions: Option<List<Text<MAX_ROW>, 1, MAX_DEVICES>>,
    peak_bytes: List<Peak, 1, MAX_DEVICES>,
    alternatives: List<Object<AlternativeFields>, 0, MAX_ALTERNATIVES>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodesFields {
    devices: List<Whole<1, { MAX_DEVICES as u64 }>, 1, MAX_DEVICES>,
    link: Object<LinkFields>,
    nic_per_device: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MoreFields {
    what: Text<MAX_TEXT>,
    step_us: Time,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AlternativeFields {
    schedule: NamedSchedule,
    chunks: Chunks,
    // Omitted if equal to those of the plan.
    replicas: Option<Whole<1, { MAX_DEVICES as u64 }>>,
    devices: Option<Whole<1, { MAX_DEVICES as u64 }>>,
    neighbours: Option<NamedNeighbours>,
    micro_batches: Micro,
    balance: List<Layers, 0, MAX_LAYERS>,
    recomputing: Whole<0, { MAX_LAYERS as u64 }>,
    // Null if no cut fits, but never omitted.
    #[serde(deserialize_with = "Option::deserialize")]
    step_us: Option<Time>,
    #[serde(deserialize_with = "Option::deserialize")]
    bubble_fraction: Option<Fraction>,
    // Missing in plans of the first builds.
    peak_bytes: Option<List<Peak, 0, MAX_DEVICES>>,
    reason: Text<{ 1 << 16 }>,
}

/// Neighbours by their name.
struct NamedNeighbours(Neighbours);

impl<'de> Deserialize<'de> for NamedNeighbours {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = Text::<64>::deserialize(from)?;
        let neighbours = name.0.parse().map_err(serde::de::Error::custom);
        neighbours.map(Self)
    }
}

/// A schedule by its name.
struct NamedSchedule(ScheduleKind);

impl<'de> Deserialize<'de> for NamedSchedule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = Text::<64>::deserialize(from)?;
        let kind = name
            .0
            .parse()
            .map_err(|error: ScheduleError| serde::de::Error::custom(error));
        kind.map(Self)
    }
}

impl Plan {
    /// Reads a plan from a file.
    ///
    /// # Errors
    /// If the file cannot be read or breaks a rule of the format; the error names file, field
    /// and rule.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let text = read_file(path)?;
        Self::from_json(text, &path.display().to_string())
    }

    /// Parses a plan from JSON; errors call it `file`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_json(text: impl AsRef<[u8]>, file: &str) -> Result<Self, ReadError> {
        let fields: PlanFields = parse_file(text.as_ref(), file, &FORMAT)?;
        fields
            .check()
            .map_err(|(field, rule)| ReadError::new(file, field, rule))?;
        let balance = fields.balance.map(Layers::size);
        let partition = Partition::from_balance(balance.iter().sum(), &balance)
            .map_err(|error| ReadError::new(file, "", error))?;
        let NamedSchedule(schedule) = fields.schedule;
        let peak_bytes = fields.peak_bytes.map(Peak::bytes);
        let devices = peak_bytes.len();
        let micro_batches = fields.micro_batches.size();
        let replicas = fields.replicas.map_or(1, Whole::size);
        let size = (balance.len(), peak_bytes.len(), micro_batches / replicas);
        let computed = fields
            .actions
            .map(|rows| computed(&rows.map(|row| row.0), schedule, size));
        Ok(Self {
            model: fields.model,
            precision: fields.precision.map(|text| text.0),
            kernels: fields.kernels.map(|text| text.0),
            device: fields.device.map(|text| text.0),
            doubts: fields
                .doubts
                .map_or(Vec::new(), |doubts| doubts.map(|text| text.0)),
            computed: computed
                .transpose()
                .map_err(|rule| ReadError::new(file, "actions", rule))?,
            partition,
            placement: fields.placement.map(|device| DeviceId(device.size())),
            schedule,
            replicas,
            tensor_parallel: fields.tensor_parallel.map_or(1, Whole::size),
            neighbours: fields.neighbours.map_or(Neighbours::default(), |own| own.0),
            shard_optimizer: fields.shard_optimizer.unwrap_or(false),
            lower_bound: fields.lower_bound_us.map(Time::micros),
            limit: fields.limit.map(|text| text.0),
            more: fields.more.map_or(Vec::new(), |more| {
                more.map(|Object(own)| More {
                    what: own.what.0,
                    step: own.step_us.micros(),
                })
            }),
            nodes: (fields.nodes.map(|Object(nodes)| nodes.nodes()))
                .transpose()
                .map_err(|rule| ReadError::new(file, "nodes", rule))?,
            micro_batches,
            chunks: fields.chunks.size(),
            micro_batch_size: fields.micro_batch_size.size(),
            batch: fields.batch.map(Whole::size),
            offload: (fields.offload)
                .map_or_else(|| vec![false; balance.len()], |offload| offload.0),
            cuda_graphs: fields.cuda_graphs.unwrap_or(false),
            recompute: fields.recompute.0,
            bottleneck: fields.bottleneck_us.micros(),
            step: fields.step_us.micros(),
            bubble_fraction: fields.bubble_fraction.get(),
            peak_bytes,
            alternatives: fields
                .alternatives
                .map(|Object(fields)| fields.alternative((replicas, devices))),
        })
    }
}

impl PlanFields {
    /// Checks that the lists match; the error has the field and the rule.
    fn check(&self) -> Result<(), (String, String)> {
        let (stages, devices) = (self.balance.0.len(), self.peak_bytes.0.len());
        let chunks = self.chunks.size();
        if devices * chunks != stages {
            let rule = format!(
                "{devices} (entries of peak_bytes) with {chunks} chunks each do not \
                 make the {stages} of balance",
                devices = count(devices, "device"),
                stages = count(stages, "stage")
            );
            return Err((String::new(), rule));
        }
        let (replicas, micro) = (
            self.replicas.map_or(1, Whole::size),
            self.micro_batches.size(),
        );
        if !micro.is_multiple_of(replicas) {
            let rule = format!(
                "must be a multiple of the {replicas}, is {micro}",
                replicas = count(replicas, "replica")
            );
            return Err(("micro_batches".to_owned(), rule));
        }
        let spread = self.nodes.as_ref().map(|Object(nodes)| nodes.all());
        if let Some(given) = spread.filter(|given| *given != devices * replicas) {
            let rule = format!(
                "must add up to {replicas} of {devices} (entries of \
                 peak_bytes), is {given}",
                devices = count(devices, "device"),
                replicas = count(replicas, "replica")
            );
            return Err(("nodes.devices".to_owned(), rule));
        }
        for (field, length) in [
            ("placement", self.placement.0.len()),
            ("recompute", self.recompute.0.len()),
            (
                "offload",
                self.offload.as_ref().map_or(stages, |own| own.0.len()),
            ),
        ] {
            if length != stages {
                let rule = format!("must have from {stages} to {stages} entries, has {length}");
                return Err((field.to_owned(), rule));
            }
        }
        let mut placement = self.placement.0.iter().enumerate();
        match placement.find(|(_, device)| device.size() >= devices) {
            Some((stage, device)) => {
                let (last, device) = (devices - 1, device.get());
                let rule = format!("must be a whole number from 0 to {last}, is {device}");
                Err((format!("placement[{stage}]"), rule))
            }
            None => Ok(()),
        }
    }
}

/// Parses the lists of a computed schedule, one text per device; they must be legal, and match the
/// plan's stages, devices and micro-batches.
fn computed(
    rows: &[String],
    kind: ScheduleKind,
    size: (usize, usize, usize),
) -> Result<Schedule, String> {
    if kind != ScheduleKind::Auto {
        return Err("is for the schedule `auto` only".to_owned());
    }
    let schedule = Schedule::from_csv(kind.name(), &rows.join("\n"));
    let schedule = schedule.map_err(|error| error.to_string())?;
    let given = (
        schedule.stages(),
        schedule.devices(),
        schedule.micro_batches(),
    );
    schedule
        .clone()
        .check()
        .map_err(|error| error.to_string())?;
    if given != size {
        let rule = "has other numbers of stages, devices or micro-batches than the plan";
        return Err(rule.to_owned());
    }
    Ok(schedule)
}

impl NodesFields {
    fn all(&self) -> usize {
        self.devices.0.iter().map(|devices| devices.size()).sum()
    }

    fn nodes(self) -> Result<Nodes, String> {
        let link = self.link.0.link().map_err(|error| error.to_string())?;
        let nodes = Nodes::new(self.devices.map(Whole::size), link);
        let nodes = nodes.map_err(|error| error.to_string())?;
        Ok(nodes.with_nic_per_device(self.nic_per_device))
    }
}

impl AlternativeFields {
    /// `own`: replicas and devices of the plan itself.
    fn alternative(self, own: (usize, usize)) -> Alternative {
        Alternative {
            schedule: self.schedule.0,
            chunks: self.chunks.size(),
            replicas: self.replicas.map_or(own.0, Whole::size),
            devices: self.devices.map_or(own.1, Whole::size),
            neighbours: self.neighbours.map_or(Neighbours::default(), |own| own.0),
            micro_batches: self.micro_batches.size(),
            balance: self.balance.map(Layers::size),
            recomputing: self.recomputing.size(),
            step: self.step_us.map(Time::micros),
            bubble_fraction: self.bubble_fraction.map(Fraction::get),
            peak_bytes: self
                .peak_bytes
                .map_or(Vec::new(), |peaks| peaks.map(Peak::bytes)),
            reason: self.reason.0,
        }
    }
}
