//! Flags.

use std::path::PathBuf;

use clap::ArgMatches;

use super::config;
use super::recipe::Recipe;
use crate::config::{Flags, GivenFlag, HasFlags, Schema};
use crate::model::flags;
use gpipe_decide::names::heading::{DATA, EVALUATION, MACHINES, MODEL, OUTPUT, PIPELINE, TRAINING};
use gpipe_models::zoo::Zoo;

impl HasFlags for Recipe {
    fn own_flags() -> Schema<Self> {
        config::schema(&Zoo::new())
    }

    fn heading(table: &str) -> &'static str {
        match table {
            "model" | "loss" => MODEL,
            "pipeline" => PIPELINE,
            "parallel" => MACHINES,
            "data" => DATA,
            "eval" => EVALUATION,
            "checkpoint" | "metrics" => OUTPUT,
            _ => TRAINING,
        }
    }

    /// Returns the size flags: see [`flags::add`].
    fn other_flags(matches: &ArgMatches) -> Vec<GivenFlag<Self>> {
        let sizes = flags::given(matches).into_iter();
        let flag = |(size, text): (String, String)| GivenFlag {
            id: flags::id(&size),
            text: text.into(),
            value: None,
        };
        sizes.map(flag).collect()
    }
}

/// Arguments of `gpipe-rs train`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    next_help_heading = OUTPUT,
    after_help = "Examples:
  gpipe-rs train --data mine.txt --steps 300 --eval-every 100
  gpipe-rs train --model mlp --data houses.csv --target price --loss mse
  gpipe-rs train --model resnet50 --data images/ --devices cuda:0-1
  gpipe-rs train --model model.pt2 --loss cross-entropy --data digits.npz --plan plan.json
  gpipe-rs train --resume runs/1 --devices cpu,cpu,cpu

All flags, with the sizes of models and the configuration: gpipe-rs train --help",
    after_long_help = "Configuration: every run writes RUN/config.toml, which is a --config that trains the same again. Its \
keys may also come from the environment (GPIPE_TRAIN__STEPS=5 is train.steps) and from --set. Later ones \
win: --config FILE < environment < --set < flags.

Examples:
  gpipe-rs train --data mine.txt --steps 300 --eval-every 100
  gpipe-rs train --model mlp --data houses.csv --target price --loss mse
  gpipe-rs train --model resnet50 --data images/ --devices cuda:0-1
  gpipe-rs train --model model.pt2 --loss cross-entropy --data digits.npz
  gpipe-rs train --devices cpu,cpu --micro 8 --schedule zbv --recompute always --report report.html
  gpipe-rs train --model vgg16 --image 32 --classes 10 --width 16 --hidden 256 --steps 20
  gpipe-rs train --config runs/1/config.toml --set optimizer.lr=0.001 --steps 1000
  gpipe-rs train --resume runs/1 --devices cpu,cpu,cpu
  gpipe-rs launch --processes 2 -- train --devices cpu --out runs/both
  gpipe-rs models gpt layers=4 --json > model.json
  gpipe-rs profile --model model.json --plan plan.json && gpipe-rs train --model model.json --plan plan.json"
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) recipe: Flags<Recipe>,
    /// A configuration, such as another run's config.toml; of several, later ones override earlier ones.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Vec<PathBuf>,
    /// A key of the configuration, such as train.steps=5; may repeat.
    #[arg(long, hide_short_help = true, value_name = "TABLE.KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Resumes the run in this folder, also on other devices. It begins at its newest checkpoint, under
    /// another schedule if one is named; the run's configuration is the lowest layer.
    #[arg(long, alias = "resume-from-checkpoint", value_name = "RUN")]
    pub(super) resume: Option<PathBuf>,
    /// Resumes from the newest intact checkpoint if newer ones are damaged.
    #[arg(long, hide_short_help = true, requires = "resume")]
    pub(super) resume_fallback: bool,
    /// Folder of the new run; by default the next free number under `runs`, and with --resume the
    /// run's own. When a launcher restarts the command, it resumes the run there.
    #[arg(
        short,
        long,
        visible_alias = "output",
        alias = "output-dir",
        value_name = "DIR"
    )]
    pub(super) out: Option<PathBuf>,
    /// Also write the last step's timeline to this file, as Chrome's trace events (for Perfetto).
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Write a report on the last step beside its prediction (.html, .svg). It explains the
    /// difference.
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Prints a line after every N steps. By default after every twentieth part of the run, and
    /// where that takes longer, every minute.
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) log_every: Option<u32>,
    /// Say nothing while training.
    #[arg(short, long, hide_short_help = true)]
    pub(super) quiet: bool,
    /// Print one JSON object at the end. Fields that do not apply are left out: held_out_loss if
    /// nothing is held out, tokens_per_s without tokens, planned_ms without --plan.
    #[arg(long)]
    pub(super) json: bool,
}
