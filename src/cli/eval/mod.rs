//! `gpipe-rs eval`: how well a trained model tells the next token of a text.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::json;
use tch::{Device, Tensor};

use super::trained::{Devices, Trained, TrainedOn, Where};
use super::{Failure, input, output, train};
use crate::data::{MOBY_DICK, Split, TextSet};
use crate::models::zoo::Zoo;
use crate::torch::LossFn as _;
use crate::{Pipeline, Values};

/// Samples at a time, where a run does not say.
const BATCH: usize = 32;

/// Arguments of `gpipe-rs eval`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs eval --run runs/1
  gpipe-rs eval --run runs/1 --data another.txt --json
  gpipe-rs eval --checkpoint runs/1/checkpoints/step-00000100 --devices cpu,cpu")]
pub(super) struct Args {
    #[command(flatten)]
    place: Where,
    /// Another text (UTF-8), which is used from its begin to its end. By default the tenth
    /// of the run's own data that was held out from training.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Sequences that are computed at a time; by default as many as in training. Changes
    /// memory and speed.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = input::at_least_one)]
    batch: Option<usize>,
    #[command(flatten)]
    on: Devices,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    train::silence_caught_panics();
    let trained = Trained::read(&args.place, zoo)?;
    let (context, _) = trained.tokens().map_err(Failure::Usage)?;
    let text = Text::choose(&trained, args.data.as_deref())?;
    let batch = args.batch.or(trained.settings.batch).unwrap_or(BATCH);
    // As in training, so that the numbers are the ones that training printed.
    let micro = trained.settings.micro.unwrap_or(args.on.devices.len());
    let mut pipe = trained.pipeline(&args.on.devices, micro)?;
    let mut sum = Sum::default();
    for (x, y) in text.windows(context, batch) {
        sum.add(&mut pipe, &trained, &x, &y)?;
    }
    report(args, &trained, &text, &sum)
}

/// What a model is judged by.
struct Text {
    tokens: Vec<i64>,
    /// What it is called.
    name: String,
    /// Whether all of it counts, to the last token that fills no window.
    whole: bool,
}

impl Text {
    fn choose(trained: &Trained, data: Option<&Path>) -> Result<Self, Failure> {
        let vocabulary = trained.vocabulary()?;
        let Some(path) = data else {
            return Self::held_out(trained);
        };
        let wrong = |why: String| Failure::Usage(format!("--data {}: {why}", path.display()));
        let text = input::text(path).map_err(|failure| match failure {
            Failure::Usage(why) => Failure::Usage(format!("--data {why}")),
            failed @ Failure::Run(_) => failed,
        })?;
        let tokens = vocabulary.encode(&text).map_err(wrong)?;
        if tokens.len() < 2 {
            return Err(wrong(
                "the text is too short: there must be a character, and one after it".to_owned(),
            ));
        }
        Ok(Self {
            tokens,
            name: path.display().to_string(),
            whole: true,
        })
    }

    /// The tenth of the run's own text that it was not trained on.
    fn held_out(trained: &Trained) -> Result<Self, Failure> {
        let usage = |why: String| Failure::Usage(format!("{why}; give a text with --data FILE"));
        let (set, name) = match &trained.settings.data {
            TrainedOn::BuiltIn => (TextSet::new(MOBY_DICK), "built-in: moby-dick".to_owned()),
            TrainedOn::File(path) => {
                let set = TextSet::read(path).map_err(|error| usage(error.to_string()))?;
                (set, path.display().to_string())
            }
            TrainedOn::Synthetic | TrainedOn::Unknown => {
                return Err(usage("there is no text that was held out".to_owned()));
            }
        };
        let characters: String = (set.part(Split::HeldOut).iter())
            .map(|&token| set.decode(token.into()))
            .collect();
        let tokens = trained.vocabulary()?.encode(&characters);
        let tokens = tokens.map_err(|why| usage(format!("{name} is another text now: {why}")))?;
        Ok(Self {
            tokens,
            name,
            whole: false,
        })
    }

    /// Windows of `context` tokens and what follows each, in batches.
    fn windows(&self, context: usize, batch: usize) -> Vec<(Tensor, Tensor)> {
        let last = self.tokens.len().saturating_sub(1);
        let starts: Vec<usize> = (0..last).step_by(context).collect();
        let (full, rest): (Vec<usize>, Vec<usize>) = starts
            .into_iter()
            .partition(|start| start + context <= last);
        let mut windows: Vec<(Tensor, Tensor)> = full
            .chunks(batch)
            .map(|starts| self.cut(starts, context))
            .collect();
        let rest = rest.first().filter(|_| self.whole);
        windows.extend(rest.map(|&start| self.cut(&[start], last - start)));
        windows
    }

    fn cut(&self, starts: &[usize], length: usize) -> (Tensor, Tensor) {
        let part = |offset: usize| {
            let rows = starts.iter().map(|start| start + offset);
            let rows: Vec<i64> = rows
                .flat_map(|from| &self.tokens[from..from + length])
                .copied()
                .collect();
            Tensor::from_slice(&rows).view([starts.len() as i64, length as i64])
        };
        (part(0), part(1))
    }
}

/// A mean that is being made, every token counting alike.
#[derive(Debug, Default)]
struct Sum {
    loss: f64,
    weight: f64,
    tokens: usize,
}

impl Sum {
    fn add(
        &mut self,
        pipe: &mut Pipeline,
        trained: &Trained,
        x: &Tensor,
        y: &Tensor,
    ) -> Result<(), Failure> {
        let outputs = pipe.forward_values(x).map_err(train::failure)?;
        let device = outputs.present().next().map_or(Device::Cpu, Tensor::device);
        let targets: Values = y.f_to_device(device)?.into();
        let loss = trained.spec.loss().loss(&outputs, &targets)?;
        let weight = loss.weight.unwrap_or(y.numel() as f64);
        self.loss += loss.value.f_double_value(&[])? * weight;
        self.weight += weight;
        self.tokens += y.numel();
        Ok(())
    }
}

fn report(args: &Args, trained: &Trained, text: &Text, sum: &Sum) -> Result<(), Failure> {
    if sum.tokens == 0 {
        return Err(Failure::Usage(format!(
            "{}: what was held out is shorter than a sequence of the model; give a text with \
             --data FILE",
            text.name
        )));
    }
    let loss = sum.loss / sum.weight;
    let bits = loss / std::f64::consts::LN_2;
    if args.json {
        let step = trained
            .settings
            .step
            .map_or(json!({}), |step| json!({"step": step}));
        let mut object = json!({
            "model": trained.spec.name(),
            "data": text.name,
            "characters": sum.tokens,
            "loss": loss,
            "perplexity": loss.exp(),
            "bits_per_character": bits,
        });
        if let (Some(object), Some(step)) = (object.as_object_mut(), step.as_object()) {
            object.extend(step.clone());
        }
        return output::print(&output::json(&object));
    }
    let held_out = if text.whole { "" } else { ", held out" };
    let mut lines = format!(
        "data         {} ({} characters{held_out})\n\
         loss         {loss:.4} per character\n\
         perplexity   {:.3}\n\
         compression  {bits:.3} bits per character\n",
        text.name,
        sum.tokens,
        loss.exp(),
    );
    if let Some(step) = trained.settings.step {
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "checkpoint   of step {step}");
    }
    output::print(&lines)
}
