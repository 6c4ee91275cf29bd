//! What a configuration says about a run, and flags too.

use std::path::PathBuf;

use clap::{Args as _, Command, FromArgMatches as _};
use gpipe_partitioner::ScheduleKind;
use tch::Device;

use super::device_options::DeviceOptions;
use super::optimizer_options::OptimizerOptions;
use super::values::{
    at_least_one, chunks, device, positive, precision, schedule, seconds, steps, threads,
};
use crate::cli::input;
use crate::cli::model::flags::Given;
use crate::{Precision, Recompute};

/// Everything that is chosen about a run: what makes its numbers, its speed and its
/// memory. Each field is a flag and a key of the configuration (see `config`).
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Recipe {
    /// The model: a name that the verb `models` lists, or a file (- is standard input) with
    /// what `models NAME --json` prints. The flags of sizes below come on top.
    #[arg(long, value_name = "NAME|FILE", default_value = "gpt")]
    pub(super) model: String,
    /// Sizes that are not to be the model's defaults; their flags are made from the models.
    #[arg(skip)]
    pub(super) sizes: Given,
    /// Begins with weights rather than random numbers: a GPT-2 or Llama as Hugging Face's
    /// transformers saves it, and `export` too. The model and its sizes are then theirs.
    #[arg(long, value_name = "PATH")]
    pub(super) weights: Option<PathBuf>,
    /// Devices, a thread each: `cpu` or `cuda:N`, may repeat.
    #[arg(long, value_name = "LIST", default_value = "cpu,cpu", value_delimiter = ',', value_parser = device)]
    pub(super) devices: Vec<Device>,
    /// Micro-batches of a mini-batch.
    #[arg(long, value_name = "M", default_value = "4", allow_negative_numbers = true, value_parser = at_least_one)]
    pub(super) micro: usize,
    /// Schedule: gpipe, 1f1b, interleaved-1f1b, looped-bfs, zb-h1, zb-h2,
    /// interleaved-zb, zbv, v-half, v-min, dualpipe-v or auto. It changes speed and
    /// memory, never numbers.
    #[arg(long, value_name = "NAME", default_value = "1f1b", value_parser = schedule)]
    pub(super) schedule: ScheduleKind,
    /// Stages of each device; by default 2 where the schedule has several, else 1.
    #[arg(long, value_name = "V", allow_negative_numbers = true, value_parser = chunks)]
    pub(super) chunks: Option<usize>,
    /// What is computed twice rather than kept for the backward, micro-batch by
    /// micro-batch: never, except-last or always. It changes no numbers either.
    #[arg(long, value_name = "WHEN", default_value = "never")]
    pub(super) recompute: Recompute,
    /// In which numbers layers compute: f32, bf16, or fp16 with loss scaling. Parameters
    /// are single precision always.
    #[arg(long, value_name = "NAME", default_value = "f32", value_parser = precision)]
    pub(super) precision: Precision,
    /// Has stages on CUDA devices replay their passes as CUDA graphs, for models of many
    /// small kernels. It changes no numbers; activations are not measured then.
    #[arg(long)]
    pub(super) cuda_graphs: bool,
    /// Layers of each stage, devices times chunks of them, such as 3,5; by default
    /// balanced by parameters.
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_negative_numbers = true, value_parser = at_least_one)]
    pub(super) balance: Option<Vec<usize>>,
    /// Schedule, chunks, balance, micro-batches and recompute from a plan, as `profile`
    /// writes it for a model of the same sizes.
    #[arg(
        long, value_name = "FILE",
        conflicts_with_all = ["micro", "schedule", "chunks", "recompute", "balance"]
    )]
    pub(super) plan: Option<PathBuf>,
    #[command(flatten)]
    pub(super) on_devices: DeviceOptions,
    /// Training steps.
    #[arg(long, value_name = "N", default_value = "400", allow_negative_numbers = true, value_parser = at_least_one)]
    pub(super) steps: usize,
    /// Samples (texts: sequences) of a mini-batch.
    #[arg(long, value_name = "N", default_value = "32", allow_negative_numbers = true, value_parser = at_least_one)]
    pub(super) batch: usize,
    #[command(flatten)]
    pub(super) update: OptimizerOptions,
    /// Seed of initial values, batches and dropout.
    #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true, value_parser = input::seed)]
    pub(super) seed: u64,
    /// Intra-op threads of each stage; by default the stages share the cores.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    pub(super) threads_per_stage: Option<usize>,
    /// Ends the run with an error when a stage has been in one action for so many seconds,
    /// and names its device, layer and micro-batch; by default it is waited for without end.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    pub(super) patience: Option<f64>,
    /// Largest 2-norm of all gradients together: larger ones are scaled down to it.
    #[arg(long, value_name = "NORM", allow_negative_numbers = true, value_parser = positive)]
    pub(super) clip: Option<f64>,
    /// UTF-8 text to train on, or a file of tokens (.u16.bin, .u32.bin, or .bin with a
    /// .bin.json beside it), the last tenth held out; or `synthetic`: inputs and targets
    /// of the model's shapes, made up once, for the speed alone. By default Moby-Dick for
    /// models of token sequences, and synthetic for the others. The vocabulary is the
    /// data's unless it is given.
    #[arg(long, value_name = "FILE|synthetic")]
    pub(super) data: Option<PathBuf>,
    /// Batches of what is held out on which the loss is measured at the end; by default all of
    /// it, and 0 measures none.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = steps)]
    pub(super) held_out: Option<usize>,
    /// Saves the run after every N steps, at its end, and when it is interrupted; 0 saves
    /// nothing.
    #[arg(long, value_name = "N", default_value = "100", allow_negative_numbers = true, value_parser = steps)]
    pub(super) checkpoint_every: usize,
    /// Keeps the newest K checkpoints.
    #[arg(long, value_name = "K", default_value = "3", allow_negative_numbers = true, value_parser = at_least_one)]
    pub(super) checkpoint_keep: usize,
    /// Floating-point operations per second that a device can do at most, for the metric
    /// `mfu`; known of some GPUs.
    #[arg(long, value_name = "FLOPS", allow_negative_numbers = true, value_parser = positive)]
    pub(super) peak_flops: Option<f64>,
    /// Operations that a sample takes, forward and backward, where the model is none of
    /// tokens.
    #[arg(skip)]
    pub(super) flops_per_sample: Option<f64>,
    /// Whether an earlier run goes on: more steps do not stretch its learning rates then.
    #[arg(skip)]
    pub(super) goes_on: bool,
}

impl Recipe {
    /// What holds where nothing is said.
    pub(super) fn defaults() -> Result<Self, clap::Error> {
        let matches = Self::augment_args(Command::new("train")).try_get_matches_from(["train"])?;
        Self::from_arg_matches(&matches)
    }

    /// Stages of each device.
    pub(super) fn chunks(&self) -> usize {
        self.chunks
            .unwrap_or_else(|| self.schedule.default_chunks())
    }

    /// Stages in all.
    pub(super) fn stages(&self) -> usize {
        self.devices.len().saturating_mul(self.chunks())
    }
}
