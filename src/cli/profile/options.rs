//! Flags, and the checked settings.

use std::path::PathBuf;

use gpipe_partitioner::words::quoted;
use gpipe_partitioner::{Bytes, ScheduleKind, When};
use tch::Device;

use crate::config::values;
use crate::feed::samples::HELD_OUT;
use crate::input::{self, DeviceList};
use crate::model::exported;
use crate::model::flags::SizeFlags;
use crate::plan::page;
use crate::{Failure, output};
use gpipe_data::{HowMany, Missing, Normalise};
use gpipe_decide::names::heading::{DATA, MEASURING, MODEL, OUTPUT, PIPELINE, TRAINING};
use gpipe_decide::reserve::Reserve;
use gpipe_models::LossKind;
use gpipe_torch::{Kernels, Precision, device_name};

/// The longest a layer may be measured, in milliseconds: an hour.
const MAX_BUDGET: usize = 3_600_000;

/// Arguments of `gpipe-rs profile`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = PIPELINE)]
#[command(after_help = "Examples:
  gpipe-rs profile --model gpt --layers 6 --d-model 128 --devices cpu,cpu --batch 32 --plan plan.json
  gpipe-rs train --model gpt --layers 6 --d-model 128 --batch 32 --plan plan.json
  gpipe-rs profile --model gpt2-xl --batch 4 --quick --low-memory
  gpipe-rs models gpt2 layers=4 --json > model.json; gpipe-rs profile --model model.json")]
pub(crate) struct Args {
    /// The model: a name that the verb `models` lists, a .pt2 that PyTorch's torch.export.save
    /// wrote, or a file (- is standard input) with what `models NAME --json` prints. The flags of
    /// sizes below come on top, but for a .pt2.
    #[arg(long, help_heading = MODEL, value_name = "NAME|FILE")]
    pub(super) model: String,
    #[command(flatten)]
    pub(super) sizes: SizeFlags,
    /// The loss of a .pt2: cross-entropy, mse, bce (of logits), or output, the single number that
    /// its program computes itself. Without this flag the loss is not measured. `mlp` also takes
    /// the first three.
    #[arg(long, help_heading = MODEL, value_name = "NAME")]
    pub(super) loss: Option<LossKind>,
    /// Devices, a stage and a thread each: `cpu*2`, `cuda:0-3`, `cuda`, `auto`, or `4` (the first four
    /// GPUs, or four CPU stages); may repeat.
    #[arg(long, value_name = "LIST", default_value = "cpu,cpu", allow_negative_numbers = true, value_parser = input::device_list)]
    pub(super) devices: DeviceList,
    /// Samples of a mini-batch.
    #[arg(
        long, help_heading = TRAINING, visible_alias = "batch-size", value_name = "N", default_value = "32",
        allow_negative_numbers = true, value_parser = input::at_least_one
    )]
    pub(super) batch: usize,
    /// How many micro-batches each batch is split into, or auto.
    // The type is named in full because clap takes a plain Option for an optional flag.
    #[arg(
        long, visible_alias = "micro-batches", value_name = "M", default_value = "auto", allow_negative_numbers = true,
        value_parser = input::count_or_auto
    )]
    pub(super) micro: std::option::Option<usize>,
    /// Memory of a device that the plan may fill, such as 22GiB: one value for all, or one for each; by
    /// default all of a GPU's but --memory-reserve.
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = input::memory)]
    pub(super) memory: Option<Vec<Bytes>>,
    #[command(flatten)]
    pub(super) reserve: Reserve,
    /// Schedule, or auto: the fastest that fits.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = schedule)]
    pub(super) schedule: ScheduleKind,
    /// Stages per device; chosen where not given.
    #[arg(long, visible_alias = "stages-per-device", value_name = "V", allow_negative_numbers = true, value_parser = input::at_least_one)]
    pub(super) chunks: Option<usize>,
    /// Whether stages recompute their forward: never, always or auto (each by itself).
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = input::recompute)]
    pub(super) recompute: When,
    /// Whether stages keep activations in the host's memory until the backward, on CUDA
    /// devices: never, always or auto (each by itself).
    #[arg(long, hide_short_help = true, value_name = "WHEN", default_value = "auto", value_parser = input::when)]
    pub(super) offload: When,
    /// Whether passes are captured as CUDA graphs: never, always or auto (where the step is
    /// shorter).
    #[arg(long, hide_short_help = true, value_name = "WHEN", default_value = "auto", value_parser = input::when)]
    pub(super) cuda_graphs: When,
    /// The data for `train --data`, or `synthetic`: its loader is measured and compared with the
    /// step. The model is then the one that `train` makes for this data.
    #[arg(long, help_heading = DATA, value_name = "PATH|synthetic")]
    pub(super) data: Option<PathBuf>,
    /// The column of a table that has the targets, as for `train`; by default the last.
    #[arg(long, help_heading = DATA, value_name = "NAME")]
    pub(super) target: Option<String>,
    /// Columns of a table that are neither inputs nor the target, as for `train`.
    #[arg(long, help_heading = DATA, value_name = "NAMES", value_delimiter = ',')]
    pub(super) drop_columns: Vec<String>,
    /// What becomes of cells of a table without a value, as for `train`.
    #[arg(long, help_heading = DATA, value_name = "WHAT", default_value_t = Missing::Refuse, value_parser = values::MISSING.parse)]
    pub(super) missing: Missing,
    /// Share of the data that `train` holds out, as in its flag.
    #[arg(
        long, help_heading = DATA, value_name = "SHARE", default_value_t = HELD_OUT, allow_negative_numbers = true,
        value_parser = values::SHARE.parse
    )]
    pub(super) held_out: f64,
    /// How the inputs of samples are scaled, as for `train`.
    #[arg(long, help_heading = DATA, value_name = "HOW", default_value_t = Normalise::Auto, value_parser = values::NORMALISE.parse)]
    pub(super) normalise: Normalise,
    /// Threads that read and decode, as for `train`; auto finds the fastest number.
    #[arg(
        long, help_heading = DATA, hide_short_help = true, value_name = "N|auto", allow_negative_numbers = true,
        value_parser = values::HOW_MANY.parse
    )]
    pub(super) workers: Option<HowMany>,
    /// Batches that are loaded ahead of their use, as for `train`.
    #[arg(
        long, help_heading = DATA, hide_short_help = true, value_name = "N|auto", allow_negative_numbers = true,
        value_parser = values::HOW_MANY.parse
    )]
    pub(super) prefetch: Option<HowMany>,
    /// The type of numbers in which layers compute: f32, bf16 or fp16, as for `train`.
    #[arg(long, value_name = "NAME", default_value = "f32", value_parser = precision)]
    pub(super) precision: Precision,
    /// Whose kernels compute matrix products and convolutions on the CPU: auto, libtorch or onednn,
    /// as for `train`.
    // See `micro`.
    #[arg(long, hide_short_help = true, value_name = "NAME", default_value = "auto", value_parser = values::KERNELS_OR_AUTO.parse)]
    pub(super) kernels: std::option::Option<Kernels>,
    /// Keep only one layer (parameters, gradients and activations) in memory at a time, for models
    /// that do not fit. No other stage competes with it then, as in training: times are a little
    /// too short.
    #[arg(long, help_heading = MEASURING)]
    pub(super) low_memory: bool,
    /// Measure as few times as possible, for a first look. Without --low-memory, the largest
    /// micro-batches are left out where the first runs of all sizes would take more than half a minute.
    #[arg(long, help_heading = MEASURING)]
    pub(super) quick: bool,
    /// The longest time to measure a layer at one size, in milliseconds.
    #[arg(long, help_heading = MEASURING, value_name = "MS", conflicts_with = "quick", allow_negative_numbers = true, value_parser = budget)]
    pub(super) budget: Option<usize>,
    /// Intra-op threads of each stage; by default the stages share the cores.
    #[arg(long, hide_short_help = true, value_name = "N", allow_negative_numbers = true, value_parser = input::at_least_one)]
    pub(super) threads_per_stage: Option<usize>,
    /// Write the profile to a file as JSON; `-` is standard output.
    #[arg(short, long, help_heading = OUTPUT, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Write the plan to a file as JSON, for `train --plan`; `-` is standard output.
    #[arg(long, help_heading = OUTPUT, value_name = "FILE")]
    pub(super) plan: Option<PathBuf>,
    /// Write a report (.html): layers and cuts, timeline, memory over time, schedules compared.
    #[arg(long, help_heading = OUTPUT, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Print one JSON object: profile, plan, spread, link, input (null without --data),
    /// doubts, limit.
    #[arg(long, help_heading = OUTPUT)]
    pub(super) json: bool,
}

fn precision(text: &str) -> Result<Precision, String> {
    (values::PRECISION.parse)(text)
}

fn schedule(text: &str) -> Result<ScheduleKind, String> {
    (values::SCHEDULE.parse)(text)
}

fn budget(text: &str) -> Result<usize, String> {
    match input::at_least_one(text)? {
        budget if budget <= MAX_BUDGET => Ok(budget),
        _ => Err(format!("must be at most {MAX_BUDGET} (an hour)")),
    }
}

impl Args {
    /// Checks the arguments for conflicts.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let wrong = |rule: String| Err(Failure::Usage(rule));
        if let Some(micro) = self.micro.filter(|&micro| micro > self.batch) {
            return wrong(format!(
                "--micro {micro} is more than --batch {}: a micro-batch is at least one sample",
                self.batch
            ));
        }
        let kind = std::mem::discriminant::<Device>;
        if self
            .devices
            .iter()
            .any(|d| kind(d) != kind(&self.devices[0]))
        {
            return wrong(
                "--devices are of different kinds: profile each kind by itself, and give `plan` \
                 the --speed of each"
                    .to_owned(),
            );
        }
        let dash = |path: &Option<PathBuf>| path.as_ref().is_some_and(|p| p.as_os_str() == "-");
        let to_stdout = [self.json, dash(&self.output), dash(&self.plan)];
        if to_stdout.into_iter().filter(|&yes| yes).count() > 1 {
            return wrong(
                "standard output can have one of --json, -o - and --plan -: give files for the \
                 others"
                    .to_owned(),
            );
        }
        for (flag, path) in [("-o", &self.output), ("--plan", &self.plan)] {
            if let Some(path) = path {
                output::writable(path)
                    .map_err(|why| Failure::Usage(format!("{flag} {}: {why}", path.display())))?;
            }
        }
        if let Some(path) = &self.report {
            let others = [
                ("-o", self.output.as_deref()),
                ("--plan", self.plan.as_deref()),
            ];
            page::check(path, &others)?;
        }
        Ok(())
    }

    /// Returns the flags of `train` that the plan does not imply; the plan has model, sizes, mini-batch
    /// and kernels.
    pub(super) fn beyond_the_plan(&self) -> String {
        let of_file = exported::is_exported(&self.model).then(|| quoted(&self.model));
        let usual = self.devices[..] == [Device::Cpu; 2];
        let names: Vec<String> = self.devices.iter().map(|own| device_name(*own)).collect();
        let missing = (self.missing != Missing::Refuse).then(|| self.missing.to_string());
        let scaled = (self.normalise != Normalise::Auto).then(|| self.normalise.to_string());
        let dropped = (!self.drop_columns.is_empty()).then(|| self.drop_columns.join(","));
        let held_out =
            (self.held_out.total_cmp(&HELD_OUT).is_ne()).then(|| self.held_out.to_string());
        let precision =
            (self.precision != Precision::default()).then(|| self.precision.to_string());
        let flags = [
            ("--model", of_file),
            ("--loss", self.loss.map(|own| own.to_string())),
            ("--data", self.data.as_ref().map(quoted)),
            ("--target", self.target.as_ref().map(quoted)),
            ("--drop-columns", dropped.map(quoted)),
            ("--missing", missing),
            ("--normalise", scaled),
            ("--held-out", held_out),
            ("--devices", (!usual).then(|| names.join(","))),
            ("--precision", precision),
            (
                "--threads-per-stage",
                self.threads_per_stage.map(|own| own.to_string()),
            ),
        ];
        let flags = flags
            .into_iter()
            .filter_map(|(name, value)| Some(format!(" {name} {}", value?)));
        flags.collect()
    }

    /// Whether standard output is JSON.
    pub(super) fn prints_data(&self) -> bool {
        let dash = |path: &Option<PathBuf>| path.as_ref().is_some_and(|p| p.as_os_str() == "-");
        self.json || dash(&self.output) || dash(&self.plan)
    }

    /// Returns micro-batch sizes to measure; other sizes are interpolated.
    pub(super) fn micro_sizes(&self) -> Vec<usize> {
        let devices = self.devices.len();
        let micros = match self.micro {
            Some(micro) => vec![micro, 2 * micro],
            None => vec![devices, 2 * devices, 4 * devices, 8 * devices],
        };
        let mut sizes: Vec<usize> = micros
            .into_iter()
            .map(|micro| self.batch.div_ceil(micro))
            .collect();
        // A curve needs two points.
        if sizes.iter().all(|&size| size == 1) && self.batch > 1 {
            sizes.push(2);
        }
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}
