//! `gpipe-rs eval`: evaluates a trained model on text or samples.

mod data;
mod samples;

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use gpipe_partitioner::words::decimals;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tch::{Device, Tensor};

use super::feed::not_data;
use super::model::exported;
use super::trained::{Devices, Place, Spoken, Trained, TrainedOn};
use super::{Failure, failure, input, output, say};
use data::Judge;
use gpipe_models::zoo::Zoo;
use gpipe_torch::{LossFn as _, Pipeline, Values};

pub(super) use samples::cut;

/// Default batch size, if the run has none.
const BATCH: usize = 32;

/// Arguments of `gpipe-rs eval`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs eval --run runs/1
  gpipe-rs eval --run runs/1 --data another.txt --json
  gpipe-rs eval --checkpoint runs/1/checkpoints/step-00000100 --devices cpu,cpu")]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    spoken: Spoken,
    /// Another text (UTF-8) or file of tokens (.bin), all of which is used; or, for a model of
    /// samples, other samples (their test part, if there is one). By default the data on which the
    /// run was evaluated: its --eval-data, or the held-out share of its own data.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Sequences that are computed at a time; by default as many as in training. It changes only
    /// memory and speed.
    #[arg(long, visible_alias = "batch-size", value_name = "N", allow_negative_numbers = true, value_parser = input::at_least_one)]
    batch: Option<usize>,
    /// Tokens of a sequence, if fewer than the model's context.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = input::at_least_one)]
    context: Option<usize>,
    #[command(flatten)]
    on: Devices,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    if let Some(path) = &args.data {
        let wrong = |why| Failure::Usage(format!("--data {}: {why}", path.display()));
        not_data::check_several(path).map_err(wrong)?;
    }
    let trained = Trained::read(&args.place, &args.spoken, zoo)?;
    let batch = args.batch.or(trained.settings.batch).unwrap_or(BATCH);
    // As in training, so that results equal those printed in training.
    let micro = trained.settings.micro.unwrap_or(args.on.devices.len());
    let data = (args.data.as_deref()).or(trained.settings.eval_data.as_deref());
    if let Some(judged) = samples::Judged::choose(&trained, data, zoo)? {
        // If there are fewer samples than a batch, and the program takes no remainder, they are one
        // batch.
        let len = judged.len();
        let few = args.batch.is_none() && !exported::takes(&trained.spec, len, micro);
        let batch = if few { batch.min(len) } else { batch };
        let (batch, micro) = samples::cut(&trained, args.batch, (batch, micro))?;
        if judged.is_all() {
            say_seen(&trained, args.data.as_deref());
        }
        let mut pipe = trained.pipeline(&args.on.devices, micro)?;
        return judged.run(args, &trained, &mut pipe, (batch, micro));
    }
    let (batch, micro) = samples::cut(&trained, args.batch, (batch, micro))?;
    let judge = Judge::choose(&trained, data)?;
    say_seen(&trained, args.data.as_deref());
    let (context, _) = trained.tokens().map_err(Failure::Usage)?;
    let context = args.context.map_or(context, |own| own.min(context));
    let mut pipe = trained.pipeline(&args.on.devices, micro)?;
    let mut sum = Sum::default();
    let windows = judge.windows(context, batch);
    let batches = Batches::new(windows.size_hint().1.unwrap_or_default());
    for window in windows {
        let (x, y) = window?;
        if !takes(&trained, &x, context, micro) {
            sum.left_out += y.numel();
            continue;
        }
        sum.add(&mut pipe, &trained, &x, &y)?;
        batches.done();
    }
    drop(batches);
    report(args, &trained, &judge, &sum)
}

/// Warns that the model was trained on most of the named data, so that its loss there is not
/// meaningful.
fn say_seen(trained: &Trained, data: Option<&Path>) {
    let (TrainedOn::File(own), Some(path)) = (&trained.settings.data, data) else {
        return;
    };
    let real = |path: &Path| path.canonicalize().ok();
    if real(own).is_some_and(|own| real(path) == Some(own)) {
        say(&format!(
            "note: the model was trained on {}: its loss there is lower than on data that it does not \
             know; without --data, eval takes what was held out",
            path.display()
        ));
    }
}

/// Whether the model takes a batch: a program may have been exported for a single length or number of
/// samples, so that a remainder is left out.
fn takes(trained: &Trained, x: &Tensor, context: usize, micro: usize) -> bool {
    let (rows, length) = (x.size()[0] as usize, x.size()[1] as usize);
    let length_fits = trained.spec.exported().is_none() || length == context;
    length_fits && exported::takes(&trained.spec, rows, micro)
}

/// A running mean over tokens.
#[derive(Debug, Default)]
struct Sum {
    loss: f64,
    weight: f64,
    tokens: usize,
    /// Tokens at the end that the model does not take.
    left_out: usize,
}

impl Sum {
    fn add(
        &mut self,
        pipe: &mut Pipeline,
        trained: &Trained,
        x: &Tensor,
        y: &Tensor,
    ) -> Result<(), Failure> {
        let outputs = pipe.forward_values(x).map_err(failure)?;
        let device = outputs.present().next().map_or(Device::Cpu, Tensor::device);
        let targets: Values = y.f_to_device(device)?.into();
        let loss = trained.spec.loss().loss(&outputs, &targets)?;
        let (sum, count) = loss.total(y.numel() as f64)?;
        self.loss += sum;
        self.weight += count;
        self.tokens += y.numel();
        Ok(())
    }
}

/// The error for a model without finite results.
fn diverged(trained: &Trained, loss: f64) -> Failure {
    let why = match trained.not_finite() {
        Ok(Some(name)) => format!("`{name}` has numbers that are NaN or infinite"),
        _ => "its weights are finite, but not what it computes with them".to_owned(),
    };
    let step = trained.settings.step;
    let of = step.map_or_else(String::new, |step| {
        format!(" of the checkpoint of step {step}")
    });
    Failure::Run(anyhow::anyhow!(
        "the loss{of} is {loss}: {why}; its training has diverged, and an older checkpoint may be \
         better: --checkpoint DIR"
    ))
}

/// Formats a count such as `118,784 characters`.
fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", output::thousands(number as u64))
}

fn report(args: &Args, trained: &Trained, judge: &Judge, sum: &Sum) -> Result<(), Failure> {
    let (name, unit) = (&judge.name, judge.unit);
    if sum.tokens == 0 {
        return Err(Failure::Usage(format!(
            "{name}: what was held out is shorter than a sequence of the model; name other data \
             with --data FILE"
        )));
    }
    let loss = sum.loss / sum.weight;
    if !loss.is_finite() {
        return Err(diverged(trained, loss));
    }
    let bits = loss / std::f64::consts::LN_2;
    if args.json {
        let mut object = json!({
            "model": trained.spec.name(),
            "data": name,
            "unit": unit,
            "count": sum.tokens,
            "loss": loss,
            "perplexity": loss.exp(),
            "bits": bits,
            "left_out": sum.left_out,
        });
        if let Some(step) = trained.settings.step {
            object["step"] = step.into();
        }
        return output::print(&output::json(&object));
    }
    let held_out = if judge.whole { "" } else { ", held out" };
    let mut lines = format!(
        "data        {name} ({}{held_out})\n\
         loss        {} per {unit}\n\
         perplexity  {}\n\
         bits        {} per {unit}\n",
        counted(sum.tokens, unit),
        decimals(loss, 4),
        decimals(loss.exp(), 3),
        decimals(bits, 3),
    );
    if sum.left_out > 0 {
        // Writing to a String cannot fail.
        let _ = writeln!(
            lines,
            "left out    {} at the end, too few for a sequence",
            counted(sum.left_out, unit)
        );
    }
    if let Some(step) = trained.settings.step {
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "checkpoint  of step {step}");
    }
    output::print(&lines)
}

/// Progress bar of batches on a terminal; hidden elsewhere. Dropping it clears the bar.
#[derive(Debug)]
pub(crate) struct Batches(ProgressBar);

impl Batches {
    pub(crate) fn new(all: usize) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{pos}/{len} {bar:12} batches, {elapsed}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::new(all as u64).with_style(style))
    }

    /// Counts one more batch.
    pub(crate) fn done(&self) {
        self.0.inc(1);
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
