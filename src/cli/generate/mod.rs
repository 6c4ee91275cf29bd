//! `gpipe-rs generate`: a trained model goes on with a text.

mod draw;
mod logits;
pub(super) mod sample;

use std::io::{ErrorKind, Write as _};
use std::time::Instant;

use serde_json::json;
use tch::Kind;

use super::trained::{Devices, Place, Spoken, Trained};
use super::vocabulary::Reader;
use super::{Failure, input, output};
use draw::Rule;
use gpipe_data::Sampler;
use gpipe_models::zoo::Zoo;
use logits::Growing;

/// Arguments of `gpipe-rs generate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs generate --run runs/1 --prompt 'Call me'
  gpipe-rs generate --run runs/1 --prompt 'The whale' --tokens 500 --temperature 0.6 --top-k 20
  gpipe-rs generate --weights gpt2 --prompt 'Call me' --top-p 0.9 --devices cpu,cpu --json")]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    spoken: Spoken,
    /// The text to continue: at least one character. A model of characters takes only characters of
    /// its training text.
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// Tokens to write at most (characters, for a model of characters). An end-of-text token ends
    /// the text earlier.
    #[arg(long, alias = "max-new-tokens", value_name = "N", default_value = "200", allow_negative_numbers = true, value_parser = input::at_least_one)]
    tokens: usize,
    /// Below 1, likely tokens become more likely; above 1, less likely; 0 always takes the most
    /// likely token.
    #[arg(long, value_name = "T", default_value = "0.8", allow_negative_numbers = true, value_parser = temperature)]
    temperature: f64,
    /// Draw only among the K most likely tokens.
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = input::at_least_one)]
    top_k: Option<usize>,
    /// Draw only among the most likely tokens that together have this probability.
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = share)]
    top_p: Option<f64>,
    /// Seed of the draws: the same seed gives the same text.
    #[arg(long, value_name = "N", default_value = "0", allow_negative_numbers = true, value_parser = input::seed)]
    seed: u64,
    #[command(flatten)]
    on: Devices,
    /// Print one JSON object at the end instead of the text as it comes.
    #[arg(long)]
    json: bool,
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("must be a number from 0 up".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1.0 => Ok(number),
        _ => Err("must be a number above 0, at most 1".to_owned()),
    }
}

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    if args.prompt.is_empty() {
        return Err(Failure::Usage(
            "--prompt is empty: give at least one character to go on with".to_owned(),
        ));
    }
    let trained = Trained::read(&args.place, &args.spoken, zoo)?;
    let instead = |why: String| match trained.settings.options.kept {
        Some(_) => format!("{why}; `predict` tells the classes or the numbers of its samples"),
        None => why,
    };
    let vocabulary = trained
        .vocabulary()
        .map_err(|why| Failure::Usage(instead(why)))?;
    let (context, _) = trained.tokens().map_err(Failure::Usage)?;
    let tokens = vocabulary.encode_prompt(&args.prompt);
    let tokens = tokens.map_err(|why| Failure::Usage(format!("--prompt: {why}")))?;
    if tokens.is_empty() {
        return Err(Failure::Usage(
            "--prompt has no token of the model: give another one".to_owned(),
        ));
    }
    let mut pipe = trained.pipeline(&args.on.devices, 1)?;
    let mut author = Author {
        reader: vocabulary.reader(&tokens),
        ends: vocabulary.ends(),
        text: Growing::new(
            &mut pipe,
            &trained.spec,
            (context, vocabulary.len()),
            tokens,
        ),
        rule: Rule {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
        },
        sampler: Sampler::new(args.seed),
        left: args.tokens,
        ended: false,
    };
    if args.json {
        return author.object(args);
    }
    author.stream(args)
}

/// A model that generates text.
struct Author<'a> {
    text: Growing<'a>,
    reader: Reader<'a>,
    /// End-of-text tokens.
    ends: Vec<i64>,
    rule: Rule,
    sampler: Sampler,
    /// Tokens that may still be generated.
    left: usize,
    /// Whether an end-of-text token was drawn.
    ended: bool,
}

impl Author<'_> {
    /// Returns the text that the next token adds, or `None` at the end.
    fn next(&mut self) -> Result<Option<String>, Failure> {
        if self.left == 0 || self.ended {
            return Ok(None);
        }
        self.left -= 1;
        let logits = self.text.logits()?.f_to_kind(Kind::Double)?;
        let logits = Vec::<f64>::try_from(&logits)?;
        let token = self.rule.draw(&logits, self.sampler.uniform());
        let token = token.ok_or_else(|| {
            anyhow::anyhow!("the model's outputs are not finite: its training has diverged")
        })? as i64;
        self.text.push(token);
        self.ended = self.ends.contains(&token);
        let mut more = self.reader.push(token)?;
        if self.left == 0 || self.ended {
            more += &self.reader.rest()?;
        }
        Ok(Some(more))
    }

    /// Writes prompt and text to standard output, each character as soon as it is complete.
    fn stream(&mut self, args: &Args) -> Result<(), Failure> {
        if !show(&args.prompt)? {
            return Ok(());
        }
        while let Some(more) = self.next()? {
            if !show(&more)? {
                return Ok(());
            }
        }
        output::print("\n")
    }

    fn object(&mut self, args: &Args) -> Result<(), Failure> {
        let (start, begin) = (Instant::now(), self.text.tokens().len());
        let mut text = String::new();
        while let Some(more) = self.next()? {
            text += &more;
        }
        let written = self.text.tokens().len() - begin;
        output::print(&output::json(&json!({
            "prompt": args.prompt,
            "text": text,
            "tokens": written,
            "ended": self.ended,
            "tokens_per_s": written as f64 / start.elapsed().as_secs_f64(),
        })))
    }
}

/// Writes to standard output at once; returns false if the reader is gone.
fn show(text: &str) -> Result<bool, Failure> {
    let text = output::plain(text);
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::Error::from(error)
            .context("cannot write to standard output")
            .into()),
    }
}
