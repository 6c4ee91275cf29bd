//! `profile.json` to a [`Profile`].

use std::path::Path;

use super::spread::{MAX_REPEATS, MAX_SPREAD};
use super::{LayerProfile, MAX_BATCH, MAX_LAYERS, MAX_POINTS, MAX_TEXT, PROFILE_VERSION};
use super::{Profile, Spread, Times};
use crate::cost::Link;
use crate::json::{Fields, Located, MAX_BYTES, ReadError, read_file};
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
        let device = fields.required("device")?.text(MAX_TEXT)?;
        let batch = fields.required("batch")?.size(1, MAX_BATCH)?;
        let text = |field: Option<Located<'_>>| field.map(|t| t.text(MAX_TEXT)).transpose();
        let libtorch = text(fields.optional("libtorch"))?;
        let measured = text(fields.optional("measured"))?;
        let input = optional_bytes(&mut fields, "input_bytes")?;
        let link = fields.optional("link").map(link).transpose()?;
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
        };
        profile.checked(file)
    }
}

fn layer(located: Located<'_>) -> Result<LayerProfile, ReadError> {
    let mut fields = located.fields()?;
    let layer = LayerProfile {
        name: fields.required("name")?.text(MAX_TEXT)?,
        times: times(&mut fields)?,
        parameters: fields.required("parameter_bytes")?.bytes()?,
        activations: fields.required("activation_bytes")?.bytes()?,
        after_input: match fields.optional("after_input_bytes") {
            Some(bytes) => Some(bytes.bytes()?),
            None => None,
        },
        output: fields.required("output_bytes")?.bytes()?,
        temporary: optional_bytes(&mut fields, "temporary_bytes")?,
        curve: match fields.optional("curve") {
            Some(curve) => {
                let points = curve.list(0, MAX_POINTS)?;
                points.into_iter().map(point).collect::<Result<_, _>>()?
            }
            None => Vec::new(),
        },
        spread: spread(&mut fields)?,
    };
    fields.finish()?;
    Ok(layer)
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

fn point(located: Located<'_>) -> Result<(usize, Times), ReadError> {
    let mut fields = located.fields()?;
    let batch = fields.required("batch")?.size(1, MAX_BATCH)?;
    let times = times(&mut fields)?;
    fields.finish()?;
    Ok((batch, times))
}

fn times(fields: &mut Fields<'_>) -> Result<Times, ReadError> {
    let optional = |field: Option<Located<'_>>| field.map(|time| time.micros()).transpose();
    Ok(Times {
        forward: fields.required("forward_us")?.micros()?,
        backward_input: fields.required("backward_input_us")?.micros()?,
        backward_weight: fields.required("backward_weight_us")?.micros()?,
        backward: optional(fields.optional("backward_us"))?,
        recompute: optional(fields.optional("recompute_us"))?,
    })
}

fn optional_bytes(fields: &mut Fields<'_>, name: &'static str) -> Result<Bytes, ReadError> {
    match fields.optional(name) {
        Some(bytes) => bytes.bytes(),
        None => Ok(Bytes::ZERO),
    }
}
