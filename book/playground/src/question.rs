//! The page's question, and its bounds.

use gpipe_partitioner::{
    Bytes, LayerProfile, LayerTimes, Link, Micros, Profile, ScheduleKind, Shape,
};
use serde::Deserialize;

/// Upper bound of stages times micro-batches, so that a browser answers and draws within about a second.
const MAX_CELLS: usize = 2048;
/// Longest time in microseconds: some eleven days.
const MAX_TIME: f64 = 1e12;

/// A pipeline of equal stages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The schedule; all are compared if absent.
    #[serde(default)]
    pub schedule: Option<String>,
    /// Number of devices.
    pub devices: usize,
    /// Micro-batches per step.
    pub micro_batches: usize,
    /// Stages per device; defaults to the schedule's usual number.
    #[serde(default)]
    pub chunks: Option<usize>,
    /// Forward of one micro-batch on one device, in microseconds; a chunk takes its share.
    pub forward_us: f64,
    /// Input-gradient half of the backward.
    pub input_us: f64,
    /// Weight-gradient half of the backward.
    pub weight_us: f64,
    /// Activation bytes of one micro-batch on one device, held until its backward.
    #[serde(default)]
    pub activation_bytes: u64,
    /// Bytes that one stage sends to the next per micro-batch; also what a recomputing stage keeps.
    #[serde(default)]
    pub output_bytes: u64,
    /// Whether stages recompute their forward before the backward.
    #[serde(default)]
    pub recompute: bool,
    /// Bandwidth and latency between devices, such as `25GB/s,5us`; transfers are free if absent.
    #[serde(default)]
    pub link: Option<String>,
}

impl Question {
    /// The requested schedule, if any.
    pub(crate) fn kind(&self) -> Result<Option<ScheduleKind>, String> {
        let kind = self.schedule.as_deref().map(str::parse).transpose();
        kind.map_err(|error: gpipe_partitioner::ScheduleError| error.to_string())
    }

    /// The link, if any.
    pub(crate) fn link(&self) -> Result<Option<Link>, String> {
        let text = self.link.as_deref().map(str::trim).unwrap_or_default();
        let link = (!text.is_empty()).then(|| text.parse::<Link>()).transpose();
        link.map_err(|error| error.to_string())
    }

    /// The shape with `chunks` chunks; an error if it exceeds the bounds.
    pub(crate) fn shape(&self, chunks: usize) -> Result<Shape, String> {
        let stages = self.devices.checked_mul(chunks);
        let cells = stages.and_then(|stages| stages.checked_mul(self.micro_batches));
        if cells.is_none_or(|cells| cells > MAX_CELLS) {
            return Err(format!(
                "{} devices with {chunks} stages each and {} micro-batches are more than this page \
                 draws: devices x stages x micro-batches may be {MAX_CELLS}",
                self.devices, self.micro_batches
            ));
        }
        Ok(Shape::new(self.devices, self.micro_batches).with_chunks(chunks))
    }

    /// The model: one layer per stage, each with a chunk's share of the times and activations.
    pub fn profile(&self, chunks: usize) -> Result<Profile, String> {
        let share = 1.0 / chunks.max(1) as f64;
        let times = [self.forward_us, self.input_us, self.weight_us].map(|time| {
            let time = Some(time * share).filter(|_| (0.0..=MAX_TIME).contains(&time));
            time.and_then(|time| Micros::new(time).ok())
        });
        let [Some(forward), Some(input), Some(weight)] = times else {
            return Err("times must be from 0 to 1000000000000 microseconds".to_owned());
        };
        let activation = Bytes(self.activation_bytes / chunks.max(1) as u64);
        let output = Bytes(self.output_bytes);
        let layer = |number: usize| {
            LayerProfile::new(number.to_string(), LayerTimes::new(forward, input, weight))
                .with_bytes(Bytes::ZERO, activation, output)
        };
        let layers = (0..self.shape(chunks)?.stages()).map(layer).collect();
        let profile = Profile::new("cpu", 1, layers).map_err(|error| error.to_string())?;
        Ok(profile.with_input(output))
    }
}
