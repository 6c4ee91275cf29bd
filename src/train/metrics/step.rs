//! Metrics of a training step.

use std::fmt;

use gpipe_partitioner::words::decimals;
use serde::{Deserialize, Deserializer, Serialize};

use gpipe_data::{Diagnosis, Limit, Phase};
use gpipe_torch::pipeline::report::HOST_BOUND;

/// TensorBoard's name of the held-out loss.
pub(super) const HELD_OUT: &str = "held_out/loss";
/// TensorBoard's name of the held-out accuracy.
pub(super) const ACCURACY: &str = "held_out/accuracy";

/// Metrics of a training step: a line of `metrics.jsonl`, without fields that do not apply.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepMetrics {
    /// Step number, from 1.
    pub step: u64,
    /// Value of the loss function: for texts, nats per token. JSON cannot express a non-finite number:
    /// it is `null` there, and NaN when read back.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// Mean held-out loss after the step, if evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_loss: Option<f64>,
    /// Share of held-out targets that equal the class of the largest output, 0 to 1, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_accuracy: Option<f64>,
    /// Time when the results were known, in seconds since 1970.
    #[serde(skip_serializing_if = "is_zero")]
    pub time: f64,
    /// Number of samples trained on so far, including this step.
    pub samples: u64,
    /// Number of tokens trained on so far, if samples are token sequences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Number of epochs trained so far, if the data is finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// Learning rate of the step's update.
    pub lr: f64,
    /// Total 2-norm of the gradients before clipping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Milliseconds from the results of the previous step, or from the start of training, to this
    /// step's: includes loading, evaluations and checkpoints in between.
    pub elapsed_ms: f64,
    /// Samples of the mini-batch per second of elapsed time.
    pub samples_per_s: f64,
    /// Tokens per second, if samples are token sequences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// Milliseconds from receiving the batch to the end of the optimizer's update.
    pub step_ms: f64,
    /// Milliseconds from the start of the first action to the end of the last.
    pub makespan_ms: f64,
    /// Share of the elapsed time spent waiting for the batch, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_wait: Option<f64>,
    /// Limit of training speed, as far as its input is concerned, over all steps so far: [`Limit`] in
    /// words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_limit: Option<Limit>,
    /// Milliseconds per batch of the loader's threads in each phase so far, by [`Phase::ALL`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_ms: Option<[f64; Phase::ALL.len()]>,
    /// CPU milliseconds per batch in each phase so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_cpu_ms: Option<[f64; Phase::ALL.len()]>,
    /// Average number of cores used by the loader's threads so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loader_cores: Option<f64>,
    /// Average number of cores used by all other threads of this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_cores: Option<f64>,
    /// Average number of ready batches when one was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batches_ready: Option<f64>,
    /// Idle share of device time, 0 to 1.
    pub bubble_measured: f64,
    /// Idle share by the schedule alone, with the step's own times.
    pub bubble_predicted: f64,
    /// Peak bytes on each device: parameters, their gradients, the optimizer's state and activations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peak_bytes: Vec<u64>,
    /// Model FLOP/s utilisation, 0 to 1: FLOPs that the model needs for the samples (forward and
    /// backward, without recomputing) relative to the devices' peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// On asynchronous devices, the largest ratio of any device: time of its host thread to submit the
    /// step's actions, over their time on the device. See [`is_host_bound`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_share: Option<f64>,
    /// Factor of losses that keeps fp16 gradients from vanishing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Whether the update was skipped because a value was not finite.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// Stages per device.
    pub chunks: usize,
    /// Recompute setting, in a word.
    pub recompute: String,
}

/// Whether a device with this [`host_share`](StepMetrics::host_share) waited for its host thread nearly
/// all the time (above nine tenths): then larger micro-batches help, and faster kernels do not.
pub fn is_host_bound(host_share: f64) -> bool {
    host_share > HOST_BOUND
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(time: &f64) -> bool {
    *time <= 0.0
}

/// Reads a number or `null`, which stands for NaN.
pub(crate) fn number_or_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl StepMetrics {
    /// Adds facts about the input.
    #[must_use]
    pub fn fed(self, input: &Diagnosis) -> Self {
        let measures = &input.measures;
        Self {
            input_limit: Some(input.limit),
            input_ms: Some(measures.phases.map(|phase| phase.wall_ms)),
            input_cpu_ms: Some(measures.phases.map(|phase| phase.cpu_ms)),
            loader_cores: Some(measures.loader_cores()),
            training_cores: Some(measures.training_cores()),
            batches_ready: Some(measures.ready),
            ..self
        }
    }

    /// Scalars about the input for TensorBoard.
    fn input(&self) -> impl Iterator<Item = (&'static str, Option<f64>)> {
        let phase = |names: [&'static str; 5], times: Option<[f64; 5]>| {
            let times = times.map_or([None; 5], |times| times.map(Some));
            names.into_iter().zip(times)
        };
        let whole = phase(
            [
                "input/read_ms",
                "input/decode_ms",
                "input/map_ms",
                "input/stack_ms",
                "input/copy_ms",
            ],
            self.input_ms,
        );
        let on_cores = phase(
            [
                "input/read_cpu_ms",
                "input/decode_cpu_ms",
                "input/map_cpu_ms",
                "input/stack_cpu_ms",
                "input/copy_cpu_ms",
            ],
            self.input_cpu_ms,
        );
        let limit = self.input_limit.map(|limit| f64::from(limit.number()));
        let others = [
            ("input/limit", limit),
            ("input/loader_cores", self.loader_cores),
            ("input/training_cores", self.training_cores),
            ("input/batches_ready", self.batches_ready),
        ];
        others.into_iter().chain(whole).chain(on_cores)
    }

    /// Returns the scalars for TensorBoard: names and values.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        let always = [
            ("train/loss", self.loss),
            ("train/lr", self.lr),
            ("speed/samples_per_s", self.samples_per_s),
            ("speed/step_ms", self.step_ms),
            ("speed/makespan_ms", self.makespan_ms),
            ("pipeline/bubble_measured", self.bubble_measured),
            ("pipeline/bubble_predicted", self.bubble_predicted),
        ];
        let sometimes = [
            (HELD_OUT, self.held_out_loss),
            (ACCURACY, self.held_out_accuracy),
            ("train/epoch", self.epoch),
            ("train/grad_norm", self.grad_norm),
            ("train/loss_scale", self.loss_scale),
            ("train/skipped", self.skipped.then_some(1.0)),
            ("speed/tokens_per_s", self.tokens_per_s),
            ("speed/input_wait", self.input_wait),
            ("speed/mfu", self.mfu),
            ("speed/host_share", self.host_share),
        ];
        let sometimes = sometimes.into_iter().chain(self.input());
        let there = sometimes.filter_map(|(tag, value)| Some((tag, value?)));
        let named = always.into_iter().chain(there);
        let memory = self.peak_bytes.iter().enumerate().map(|(device, bytes)| {
            let tag = format!("memory/peak_bytes_device_{device}");
            (tag, *bytes as f64)
        });
        let named = named.map(|(tag, value)| (tag.to_owned(), value));
        named.chain(memory).collect()
    }
}

/// Formats as `loss 4.4309  lr 3.00e-3  norm 0.81  272 samples/s, 4348 tokens/s  bubble 7.8 %`, with
/// the share of waiting for input if it is large.
impl fmt::Display for StepMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loss {}  lr {:.2e}", decimals(self.loss, 4), self.lr)?;
        if let Some(loss) = self.held_out_loss {
            write!(f, "  held-out loss {}", decimals(loss, 4))?;
        }
        if let Some(norm) = self.grad_norm {
            write!(f, "  norm {}", decimals(norm, 3))?;
        }
        let speed = speed(self.samples_per_s, self.tokens_per_s);
        write!(f, "  {speed}  bubble {:.1} %", self.bubble_measured * 100.0)?;
        if let Some(wait) = self.input_wait.filter(|wait| *wait >= MUCH_WAITING) {
            write!(f, "  input {:.0} %", wait * 100.0)?;
        }
        if let Some(mfu) = self.mfu {
            write!(f, "  mfu {:.1} %", mfu * 100.0)?;
        }
        if let Some(share) = self.host_share.filter(|share| is_host_bound(*share)) {
            write!(f, "  host-bound ({:.0} %)", share * 100.0)?;
        }
        if self.skipped {
            write!(f, "  update skipped")?;
        }
        Ok(())
    }
}

/// Smaller shares of waiting are not shown.
const MUCH_WAITING: f64 = 0.05;

/// Formats as `81.3 samples/s, 10406 tokens/s`.
pub fn speed(samples: f64, tokens: Option<f64>) -> String {
    let tokens = tokens.map_or_else(String::new, |tokens| format!(", {tokens:.0} tokens/s"));
    let digits = usize::from(samples < 100.0);
    format!("{samples:.digits$} samples/s{tokens}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a diverging run once had numbers such as `norm 570000000.000`.
    #[test]
    fn large_numbers_do_not_fill_a_line() {
        let step = StepMetrics {
            loss: 123_456_789.0,
            grad_norm: Some(570_000_000.0),
            held_out_loss: Some(2.5),
            ..StepMetrics::default()
        };
        let line = step.to_string();
        assert!(
            line.starts_with("loss 1.23e8  lr 0.00e0  held-out loss 2.5000  norm 5.70e8  "),
            "{line}"
        );
    }
}
