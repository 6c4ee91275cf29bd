//! `plan.json`: reading and writing.

use std::path::Path;

use serde_json::{Value, json};

use super::options::MAX_MICRO;
use super::{Alternative, PLAN_VERSION, Plan};
use crate::builtin::ScheduleKind;
use crate::ids::DeviceId;
use crate::json::{Located, Place, ReadError, read_file};
use crate::machine::MAX_DEVICES;
use crate::model::ModelId;
use crate::partition::Partition;
use crate::profile::{MAX_BATCH, MAX_LAYERS};
use crate::schedule::Schedule;
use crate::units::{Bytes, Micros};

/// The longest step, in microseconds: three decades.
const MAX_STEP: f64 = 1e15;
/// The highest peak of a device.
const MAX_PEAK: u64 = 1 << 60;
/// The most runners-up.
const MAX_ALTERNATIVES: usize = 10_000;
/// The longest list of actions, in bytes.
const MAX_ROW: usize = 1 << 25;
/// The most chunks per device.
const MAX_CHUNKS: usize = 1 << 12;

impl Plan {
    /// The plan as JSON.
    pub fn to_json(&self) -> String {
        let mut value = json!({
            "version": PLAN_VERSION,
            "balance": self.partition.balance(),
            "placement": self.placement,
            "schedule": self.schedule.name(),
            "micro_batches": self.micro_batches,
            "chunks": self.chunks,
            "micro_batch_size": self.micro_batch_size,
            "recompute": self.recompute,
            "bottleneck_us": self.bottleneck,
            "step_us": self.step,
            "bubble_fraction": self.bubble_fraction,
            "peak_bytes": self.peak_bytes,
            "alternatives": self.alternatives.iter().map(alternative_value).collect::<Vec<_>>(),
        });
        if let Some(model) = &self.model {
            value["model"] = model.to_value();
        }
        if !self.doubts.is_empty() {
            value["doubts"] = json!(self.doubts);
        }
        if let Some(schedule) = &self.computed {
            let csv = schedule.to_csv();
            value["actions"] = csv.lines().collect();
        }
        format!("{value:#}\n")
    }

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

    /// Reads a plan from JSON; `file` is what errors call it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_json(text: impl AsRef<[u8]>, file: &str) -> Result<Self, ReadError> {
        let mut fields = Located::parse(text.as_ref(), file)?.fields()?;
        fields.version(PLAN_VERSION)?;
        if fields.has("layers") && !fields.has("balance") {
            return Err(
                fields.error("it is a profile, not a plan: `gpipe-rs plan` makes one from it")
            );
        }
        // Plans of the first builds do not have it.
        let model = fields.optional("model").map(ModelId::read).transpose()?;
        let doubts = fields.optional("doubts").map(crate::profile::doubts);
        let doubts = doubts.transpose()?.unwrap_or_default();
        let balance = sizes(fields.required("balance")?, 1)?;
        let placement = fields.required("placement")?;
        let recompute = fields.required("recompute")?;
        let schedule = schedule(fields.required("schedule")?)?;
        let micro_batches = fields.required("micro_batches")?.size(1, MAX_MICRO)?;
        let chunks = fields.required("chunks")?.size(1, MAX_CHUNKS)?;
        let micro_batch_size = fields
            .required("micro_batch_size")?
            .size(1, MAX_BATCH * 64)?;
        let bottleneck = micros(&fields.required("bottleneck_us")?)?;
        let step = micros(&fields.required("step_us")?)?;
        let bubble_fraction = fields.required("bubble_fraction")?.number(0.0, 1.0)?;
        let actions = fields.optional("actions");
        let peak_bytes = peaks(fields.required("peak_bytes")?, 1)?;
        let alternatives = fields.required("alternatives")?.list(0, MAX_ALTERNATIVES)?;
        let stages = balance.len();
        let devices = peak_bytes.len();
        if devices * chunks != stages {
            return Err(fields.error(format_args!(
                "{devices} devices (entries of peak_bytes) with {chunks} chunks each do not \
                 make the {stages} stages of balance"
            )));
        }
        let partition = Partition::from_balance(balance.iter().sum(), &balance)
            .map_err(|error| fields.error(error))?;
        fields.finish()?;
        let computed = actions.map(|rows| computed(rows, schedule)).transpose()?;
        if let Some(given) = &computed
            && (given.stages(), given.devices(), given.micro_batches())
                != (stages, devices, micro_batches)
        {
            return Err(Place::new(file, "actions")
                .error("has other numbers of stages, devices or micro-batches than the plan"));
        }
        Ok(Self {
            model,
            doubts,
            computed,
            partition,
            placement: each(placement, stages, |d| d.size(0, devices - 1).map(DeviceId))?,
            schedule,
            micro_batches,
            chunks,
            micro_batch_size,
            recompute: each(recompute, stages, Located::boolean)?,
            bottleneck,
            step,
            bubble_fraction,
            peak_bytes,
            alternatives: alternatives
                .into_iter()
                .map(alternative)
                .collect::<Result<_, _>>()?,
        })
    }
}

/// The lists of a computed schedule, one text a device; they must be legal.
fn computed(located: Located<'_>, kind: ScheduleKind) -> Result<Schedule, ReadError> {
    let place = located.place();
    if kind != ScheduleKind::Auto {
        return Err(place.error("is for the schedule `auto` only"));
    }
    let rows = located.list(1, MAX_DEVICES)?;
    let rows: Vec<String> = rows
        .into_iter()
        .map(|row| row.text(MAX_ROW))
        .collect::<Result<_, _>>()?;
    let schedule = Schedule::from_csv(kind.name(), &rows.join("\n"));
    let schedule = schedule.map_err(|error| place.error(error))?;
    match schedule.clone().check() {
        Ok(_) => Ok(schedule),
        Err(error) => Err(place.error(error)),
    }
}

fn alternative_value(alternative: &Alternative) -> Value {
    json!({
        "schedule": alternative.schedule.name(),
        "chunks": alternative.chunks,
        "micro_batches": alternative.micro_batches,
        "balance": alternative.balance,
        "recomputing": alternative.recomputing,
        "step_us": alternative.step,
        "bubble_fraction": alternative.bubble_fraction,
        "peak_bytes": alternative.peak_bytes,
        "reason": alternative.reason,
    })
}

fn alternative(located: Located<'_>) -> Result<Alternative, ReadError> {
    let mut fields = located.fields()?;
    let alternative = Alternative {
        schedule: schedule(fields.required("schedule")?)?,
        chunks: fields.required("chunks")?.size(1, MAX_CHUNKS)?,
        micro_batches: fields.required("micro_batches")?.size(1, MAX_MICRO)?,
        balance: sizes(fields.required("balance")?, 0)?,
        recomputing: fields.required("recomputing")?.size(0, MAX_LAYERS)?,
        step: fields.required("step_us")?.nullable(micros)?,
        bubble_fraction: fields
            .required("bubble_fraction")?
            .nullable(|f| f.number(0.0, 1.0))?,
        // Plans of the first builds do not have it.
        peak_bytes: match fields.optional("peak_bytes") {
            Some(located) => peaks(located, 0)?,
            None => Vec::new(),
        },
        reason: fields.required("reason")?.text(1 << 16)?,
    };
    fields.finish()?;
    Ok(alternative)
}

/// A peak for each device, of which there are at least `min`.
fn peaks(located: Located<'_>, min: usize) -> Result<Vec<Bytes>, ReadError> {
    let entries = located.list(min, MAX_DEVICES)?;
    let peak = |peak: &Located<'_>| peak.count(0, MAX_PEAK).map(Bytes);
    entries.iter().map(peak).collect()
}

fn micros(located: &Located<'_>) -> Result<Micros, ReadError> {
    Micros::new(located.number(0.0, MAX_STEP)?).map_err(|error| located.error(error))
}

/// Layers per stage: at most as many entries, and each as large, as a profile has layers.
fn sizes(located: Located<'_>, min: usize) -> Result<Vec<usize>, ReadError> {
    let entries = located.list(min, MAX_LAYERS)?;
    entries
        .iter()
        .map(|size| size.size(1, MAX_LAYERS))
        .collect()
}

/// A list of exactly `length` entries.
fn each<'a, T>(
    located: Located<'a>,
    length: usize,
    read: impl Fn(&Located<'a>) -> Result<T, ReadError>,
) -> Result<Vec<T>, ReadError> {
    located.list(length, length)?.iter().map(read).collect()
}

fn schedule(located: Located<'_>) -> Result<ScheduleKind, ReadError> {
    let place = located.place();
    let name = located.text(64)?;
    name.parse().map_err(|error| place.error(error))
}
