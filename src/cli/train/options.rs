//! Flags, and what they mean once checked.

use std::path::PathBuf;

use gpipe_partitioner::ScheduleKind;
use tch::Device;

use super::Failure;
use super::values::{
    at_least_one, blocks, chunks, device, positive, probability, schedule, threads, width,
};
use crate::data::{MOBY_DICK, TextSet};
use crate::models::Gpt;
use crate::{AdamW, OptimizerKind, Recompute};

/// Arguments of `gpipe-rs train`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Example: gpipe-rs train --devices cpu,cpu --micro 8 --schedule zbv --recompute always \
                  --steps 100 --report report.html"
)]
pub(in crate::cli) struct Args {
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
    /// Where to write the last step's timeline as Chrome's trace events (for
    /// Perfetto), besides the run folder.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Where to write the last step beside its prediction, with the difference
    /// explained: a page (.html) or a picture (.svg).
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Say nothing while training.
    #[arg(long)]
    pub(super) quiet: bool,
    /// Print one JSON object at the end.
    #[arg(long)]
    pub(super) json: bool,
}

impl Args {
    /// Stages of each device.
    pub(super) fn chunks(&self) -> usize {
        self.chunks
            .unwrap_or_else(|| self.schedule.default_chunks())
    }

    /// Layers of the model: blocks, embedding and head.
    pub(super) fn model_layers(&self) -> usize {
        self.layers + 2
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
