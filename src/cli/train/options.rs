//! Flags, and what they mean once checked.

use std::path::PathBuf;

use gpipe_partitioner::ScheduleKind;
use tch::Device;

use super::Failure;
use crate::data::{MOBY_DICK, TextSet};
use crate::models::Gpt;
use crate::{AdamW, OptimizerKind};

/// The most characters of a mini-batch: gigabytes of tokens alone are a slip.
const MAX_TOKENS: usize = 1 << 28;

/// Arguments of `gpipe-rs train`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: gpipe-rs train --devices cpu,cpu --micro 8 --schedule 1f1b --steps 100"
)]
pub(in crate::cli) struct Args {
    /// Devices, one stage each: `cpu` or `cuda:N`, may repeat.
    #[arg(long, value_name = "LIST", default_value = "cpu,cpu", value_delimiter = ',', value_parser = device)]
    pub(super) devices: Vec<Device>,
    /// Micro-batches of a mini-batch.
    #[arg(long, value_name = "M", default_value = "4", allow_negative_numbers = true, value_parser = at_least_one)]
    pub(super) micro: usize,
    /// Schedule: gpipe or 1f1b. It changes speed and memory, never numbers.
    #[arg(long, value_name = "NAME", default_value = "1f1b", value_parser = schedule)]
    pub(super) schedule: ScheduleKind,
    /// Layers of each stage, such as 3,5; by default balanced by parameters.
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_negative_numbers = true, value_parser = at_least_one)]
    pub(super) balance: Option<Vec<usize>>,
    /// Training steps.
    #[arg(long, value_name = "N", default_value = "400", allow_negative_numbers = true, value_parser = at_least_one)]
    pub(super) steps: usize,
    /// Sequences of a mini-batch.
    #[arg(long, value_name = "N", default_value = "32", allow_negative_numbers = true, value_parser = at_least_one)]
    pub(super) batch: usize,
    /// Characters of a sequence.
    #[arg(long, value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = at_least_one)]
    pub(super) seq: usize,
    /// Transformer blocks (the model has two layers more: embedding and head).
    #[arg(long, value_name = "N", default_value = "6", allow_negative_numbers = true, value_parser = blocks)]
    pub(super) layers: usize,
    /// Features of a token.
    #[arg(long, value_name = "N", default_value = "128", allow_negative_numbers = true, value_parser = width)]
    pub(super) d_model: usize,
    /// Attention heads; must divide --d-model.
    #[arg(long, value_name = "N", default_value = "4", allow_negative_numbers = true, value_parser = width)]
    pub(super) heads: usize,
    /// Dropout probability, from 0 to below 1.
    #[arg(long, value_name = "P", default_value = "0", allow_negative_numbers = true, value_parser = probability)]
    pub(super) dropout: f64,
    /// Learning rate of AdamW.
    #[arg(long, value_name = "RATE", default_value = "0.002", allow_negative_numbers = true, value_parser = positive)]
    pub(super) lr: f64,
    /// Seed of initial values, batches and dropout.
    #[arg(
        long,
        value_name = "N",
        default_value = "0",
        allow_negative_numbers = true
    )]
    pub(super) seed: u64,
    /// Intra-op threads of each stage; by default the stages share the cores.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    pub(super) threads_per_stage: Option<usize>,
    /// UTF-8 text to train on; the last tenth is held out. Moby-Dick by default.
    #[arg(long, value_name = "FILE")]
    pub(super) data: Option<PathBuf>,
    /// Run folder, made new; by default the next free number under `runs`.
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Say nothing while training.
    #[arg(long)]
    pub(super) quiet: bool,
    /// Print one JSON object at the end.
    #[arg(long)]
    pub(super) json: bool,
}

impl Args {
    /// Checks the arguments against each other.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let wrong = |message: String| Err(Failure::Usage(message));
        if !self.d_model.is_multiple_of(self.heads) {
            return wrong(format!(
                "--d-model {} is not a multiple of --heads {}: heads share the features evenly",
                self.d_model, self.heads
            ));
        }
        if self.micro > self.batch {
            return wrong(format!(
                "--micro {} is more than --batch {}: a micro-batch is at least one sequence",
                self.micro, self.batch
            ));
        }
        let tokens = self.batch.saturating_mul(self.seq);
        if tokens > MAX_TOKENS {
            return wrong(format!(
                "--batch {} times --seq {} is more than {MAX_TOKENS} characters a step",
                self.batch, self.seq
            ));
        }
        // Blocks, embedding and head.
        let (layers, devices) = (self.layers + 2, self.devices.len());
        if let Some(balance) = &self.balance {
            let (stages, sum) = (
                balance.len(),
                balance
                    .iter()
                    .fold(0, |sum: usize, n| sum.saturating_add(*n)),
            );
            if stages != devices {
                return wrong(format!(
                    "--balance names {stages} stages, but --devices has {devices}: give one number for each device"
                ));
            }
            if sum != layers {
                return wrong(format!(
                    "--balance adds up to {sum} layers, but the model has {layers} ({} blocks, embedding and head)",
                    self.layers
                ));
            }
        }
        if devices > layers {
            return wrong(format!(
                "--devices makes {devices} stages, but the model has only {layers} layers: use fewer devices or more --layers"
            ));
        }
        Ok(())
    }

    pub(super) fn text(&self) -> Result<TextSet, Failure> {
        let Some(path) = &self.data else {
            return Ok(TextSet::new(MOBY_DICK));
        };
        TextSet::read(path).map_err(|error| Failure::Usage(format!("--data: {error}")))
    }

    pub(super) fn sizes(&self, vocab: usize) -> Gpt {
        Gpt {
            vocab: vocab as i64,
            context: self.seq as i64,
            d_model: self.d_model as i64,
            heads: self.heads as i64,
            blocks: self.layers,
            dropout: self.dropout,
        }
    }

    pub(super) fn optimizer(&self) -> OptimizerKind {
        AdamW {
            lr: self.lr,
            ..AdamW::default()
        }
        .into()
    }
}

fn device(text: &str) -> Result<Device, String> {
    crate::parse_device(text).map_err(|error| error.to_string())
}

fn schedule(text: &str) -> Result<ScheduleKind, String> {
    text.parse::<ScheduleKind>()
        .map_err(|error| error.to_string())
}

/// A count from 1 to `most`.
fn count(text: &str, most: usize) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.trim_start_matches(['-', '+']);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("`{text}` is not a whole number"));
    }
    match text.parse::<usize>() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ if text.starts_with('-') || digits.bytes().all(|byte| byte == b'0') => {
            Err("must be at least 1".to_owned())
        }
        _ => Err(format!("must be at most {most}")),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    count(text, 1 << 32)
}

/// A size of the model: larger ones fit no machine, and libtorch says so less well.
fn width(text: &str) -> Result<usize, String> {
    count(text, 1 << 16)
}

fn blocks(text: &str) -> Result<usize, String> {
    count(text, 1 << 12)
}

fn threads(text: &str) -> Result<usize, String> {
    count(text, 1 << 10)
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(p) if (0.0..1.0).contains(&p) => Ok(p),
        _ => Err("must be a number from 0 to below 1".to_owned()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("must be a number above 0".to_owned()),
    }
}
