//! `profile.json` to a [`Profile`].

use std::path::Path;

use super::spread::{MAX_REPEATS, MAX_SPREAD};
use super::{
    Footprint, LayerProfile, MAX_BATCH, MAX_DOUBTS, MAX_LAYERS, MAX_POINTS, MAX_TEXT,
    PROFILE_VERSION,
};
use super::{LayerTimes, Profile, Spread};
use crate::cost::Link;
use crate::json::{Fields, Located, MAX_BYTES, ReadError, read_file};
use crate::model::ModelId;
use crate::units::Bytes;

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

    /// Reads a profile from JSON; `file` is what errors call it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_json(text: impl AsRef<[u8]>, file: &str) -> Result<Self, ReadError> {
        let mut fields = Located::parse(text.as_ref(), file)?.fields()?;
        fields.version(PROFILE_VERSION)?;
        if fields.has("balance") && !fields.has("layers") {
            return Err(fields.error("it is a plan, not a profile: `gpipe-rs profile` makes those"));
        }
        let device = fields.required("device")?.text(MAX_TEXT)?;
        let batch = fields.required("batch")?.size(1, MAX_BATCH)?;
        let text = |field: Option<Located<'_>>| field.map(|t| t.text(MAX_TEXT)).transpose();
        let libtorch = text(fields.optional("libtorch"))?;
        let measured = text(fields.optional("measured"))?;
        let input = optional_bytes(&mut fields, "input_bytes")?;
        let model = fields.optional("model").map(ModelId::read).transpose()?;
        let link = fields.optional("link").map(link).transpose()?;
        let doubts = fields.optional("doubts").map(doubts).transpose()?;
        let layers = fields.required("layers")?.list(1, MAX_LAYERS)?;
        fields.finish()?;
        let profile = Self {
            device,
            batch,
            layers: layers.into_iter().map(layer).collect::<Result<_, _>>()?,
            input,
            libtorch,
            measured,
            link,
            model,
            doubts,
        };
        profile.checked(file)
    }
}

fn layer(located: Located<'_>) -> Result<LayerProfile, ReadError> {
    let mut fields = located.fields()?;
    let points = match fields.optional("curve") {
        Some(curve) => curve.list(0, MAX_POINTS)?,
        None => Vec::new(),
    };
    let points: Vec<Point> = points.into_iter().map(point).collect::<Result<_, _>>()?;
    let bytes = points.iter().filter_map(|p| Some((p.batch, p.footprint?)));
    let layer = LayerProfile {
        name: fields.required("name")?.text(MAX_TEXT)?,
        times: times(&mut fields)?,
        parameters: fields.required("parameter_bytes")?.bytes()?,
        activations: fields.required("activation_bytes")?.bytes()?,
        after_input: maybe_bytes(&mut fields, "after_input_bytes")?,
        output: fields.required("output_bytes")?.bytes()?,
        temporary: optional_bytes(&mut fields, "temporary_bytes")?,
        input_temporary: maybe_bytes(&mut fields, "input_temporary_bytes")?,
        weight_temporary: maybe_bytes(&mut fields, "weight_temporary_bytes")?,
        curve: points.iter().map(|p| (p.batch, p.times)).collect(),
        footprints: bytes.collect(),
        spread: spread(&mut fields)?,
    };
    fields.finish()?;
    Ok(layer)
}

/// Of a profile, or of what was made from it.
pub(crate) fn doubts(located: Located<'_>) -> Result<Vec<String>, ReadError> {
    let doubts = located.list(0, MAX_DOUBTS)?.into_iter();
    doubts.map(|doubt| doubt.text(MAX_TEXT)).collect()
}

/// Between two of the devices.
fn link(located: Located<'_>) -> Result<Link, ReadError> {
    let mut fields = located.fields()?;
    let latency = fields.required("latency_us")?.micros()?;
    let link = match fields.optional("bytes_per_second") {
        Some(bytes) => {
            let bandwidth = Bytes(bytes.count(1, MAX_BYTES)?);
            Link::new(bandwidth, latency).map_err(|error| bytes.error(error))?
        }
        None => Link::without_copy(latency),
    };
    fields.finish()?;
    Ok(link)
}

/// Its three fields go together.
fn spread(fields: &mut Fields<'_>) -> Result<Option<Spread>, ReadError> {
    let (forward, backward) = ("forward_spread", "backward_spread");
    let Some(repeats) = fields.optional("repeats") else {
        let alone = [forward, backward].map(|name| fields.optional(name));
        return match alone.into_iter().flatten().next() {
            Some(alone) => Err(alone.error("must come with repeats")),
            None => Ok(None),
        };
    };
    let repeats = repeats.size(0, MAX_REPEATS)?;
    let forward = fields.required(forward)?.number(0.0, MAX_SPREAD)?;
    let backward = fields.required(backward)?.number(0.0, MAX_SPREAD)?;
    Ok(Some(Spread::new(repeats, forward, backward)))
}

struct Point {
    batch: usize,
    times: LayerTimes,
    footprint: Option<Footprint>,
}

fn point(located: Located<'_>) -> Result<Point, ReadError> {
    let mut fields = located.fields()?;
    let point = Point {
        batch: fields.required("batch")?.size(1, MAX_BATCH)?,
        times: times(&mut fields)?,
        footprint: match fields.optional("activation_bytes") {
            Some(activations) => Some(Footprint {
                activations: activations.bytes()?,
                after_input: maybe_bytes(&mut fields, "after_input_bytes")?,
                output: fields.required("output_bytes")?.bytes()?,
                temporary: optional_bytes(&mut fields, "temporary_bytes")?,
                input_temporary: maybe_bytes(&mut fields, "input_temporary_bytes")?,
                weight_temporary: maybe_bytes(&mut fields, "weight_temporary_bytes")?,
            }),
            None => None,
        },
    };
    fields.finish()?;
    Ok(point)
}

fn maybe_bytes(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<Bytes>, ReadError> {
    let bytes = fields.optional(name);
    bytes.map(|bytes| bytes.bytes()).transpose()
}

fn times(fields: &mut Fields<'_>) -> Result<LayerTimes, ReadError> {
    let optional = |field: Option<Located<'_>>| field.map(|time| time.micros()).transpose();
    Ok(LayerTimes {
        forward: fields.required("forward_us")?.micros()?,
        backward_input: fields.required("backward_input_us")?.micros()?,
        backward_weight: fields.required("backward_weight_us")?.micros()?,
        backward: optional(fields.optional("backward_us"))?,
        recompute: optional(fields.optional("recompute_us"))?,
    })
}

fn optional_bytes(fields: &mut Fields<'_>, name: &'static str) -> Result<Bytes, ReadError> {
    Ok(maybe_bytes(fields, name)?.unwrap_or_default())
}
