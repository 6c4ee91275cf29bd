//! The numbers of one training step.

use std::fmt;

use gpipe_partitioner::words::decimals;
use serde::{Deserialize, Deserializer, Serialize};

use gpipe_data::{Diagnosis, Limit, Phase};
use gpipe_torch::pipeline::report::HOST_BOUND;

/// What TensorBoard calls the loss on held-out data.
pub(super) const HELD_OUT: &str = "held_out/loss";
/// And the accuracy.
pub(super) const ACCURACY: &str = "held_out/accuracy";

/// What a training step came to: a line of `metrics.jsonl`. What does not apply is not
/// in the line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepMetrics {
    /// From 1.
    pub step: u64,
    /// As the model's loss function has it: for texts, nats per token. JSON has no word
    /// for a number that is not finite: it is `null` there, and NaN when read back.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// The mean loss on held-out data after the step, where the run was evaluated then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_loss: Option<f64>,
    /// The share of held-out targets that are the class of the largest output, 0 to 1, where that
    /// was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_accuracy: Option<f64>,
    /// When its numbers were known, in seconds since 1970.
    #[serde(skip_serializing_if = "is_zero")]
    pub time: f64,
    /// Samples that were trained on up to its end, those of all steps before it with them.
    pub samples: u64,
    /// The same in tokens, where a sample is a sequence of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The same in epochs, where the data has an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// Learning rate of the step's update.
    pub lr: f64,
    /// 2-norm of all gradients together, before they were clipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Milliseconds from the numbers of the step before, or from the begin of training, to those of
    /// this one: loading, evaluations and checkpoints in between count.
    pub elapsed_ms: f64,
    /// Samples of the mini-batch by the elapsed time.
    pub samples_per_s: f64,
    /// The same for tokens, where a sample is a sequence of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// Milliseconds from having the batch to the end of the optimizer's update.
    pub step_ms: f64,
    /// Milliseconds from the begin of the first action to the end of the last.
    pub makespan_ms: f64,
    /// Share of the elapsed time in which the batch was waited for, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_wait: Option<f64>,
    /// What holds the training back as far as its input is concerned, in all steps up to this one:
    /// [`Limit`] in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_limit: Option<Limit>,
    /// What a batch has taken in each phase of loading so far, by [`Phase::ALL`]: milliseconds of
    /// the threads that do it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_ms: Option<[f64; Phase::ALL.len()]>,
    /// The same on cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_cpu_ms: Option<[f64; Phase::ALL.len()]>,
    /// Cores that the loader's threads have taken so far, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loader_cores: Option<f64>,
    /// Cores that all other threads of this process have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_cores: Option<f64>,
    /// Batches that were ready when one was asked for, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batches_ready: Option<f64>,
    /// Idle share of device time, 0 to 1.
    pub bubble_measured: f64,
    /// The same as the schedule alone costs it, with the step's own times.
    pub bubble_predicted: f64,
    /// The most bytes at any time on each device: parameters, their gradients, the
    /// optimizer's state and activations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peak_bytes: Vec<u64>,
    /// Model FLOP/s utilisation: FLOPs that the model needs for the samples, forward and
    /// backward and nothing twice, by what the devices could have done, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// On asynchronous devices, the largest of them: how long its host thread took to submit
    /// the step's actions, over how long these took on the device. See [`is_host_bound`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_share: Option<f64>,
    /// What losses are multiplied with so that gradients in fp16 do not vanish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Whether the update was left out because something was not finite.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// Stages of each device.
    pub chunks: usize,
    /// What was computed twice, in a word.
    pub recompute: String,
}

/// Whether a device with this [`host_share`](StepMetrics::host_share) waited for its host
/// thread nearly all the time (above nine tenths): faster kernels do not help then, and
/// larger micro-batches do.
pub fn is_host_bound(host_share: f64) -> bool {
    host_share > HOST_BOUND
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(time: &f64) -> bool {
    *time <= 0.0
}

/// A number for which `null` may stand where it is not finite.
pub(crate) fn number_or_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl StepMetrics {
    /// The same with what is known of its input.
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

    /// What TensorBoard has of the input.
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

    /// The numbers as TensorBoard has them: name and value.
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

/// `loss 4.4309  lr 3.00e-3  norm 0.81  272 samples/s, 4348 tokens/s  bubble 7.8 %`, with what input
/// was waited for where that is much of the step.
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

/// A step that waits less for its batch, as a share of it, says nothing of that.
const MUCH_WAITING: f64 = 0.05;

/// `81.3 samples/s, 10406 tokens/s`
pub fn speed(samples: f64, tokens: Option<f64>) -> String {
    let tokens = tokens.map_or_else(String::new, |tokens| format!(", {tokens:.0} tokens/s"));
    let digits = usize::from(samples < 100.0);
    format!("{samples:.digits$} samples/s{tokens}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that diverges had lines such as `norm 570000000.000`.
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
