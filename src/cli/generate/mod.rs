//! `gpipe-rs generate`: a trained model goes on with a text.

mod draw;
pub(super) mod sample;

use std::io::{ErrorKind, Write as _};
use std::time::Instant;

use serde_json::json;
use tch::{Kind, Tensor};

use super::trained::{Devices, Trained, Vocabulary, Where};
use super::{Failure, failure, input, output};
use crate::Pipeline;
use crate::data::Sampler;
use crate::models::zoo::Zoo;
use draw::Rule;

/// Arguments of `gpipe-rs generate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gpipe-rs generate --run runs/1 --prompt 'Call me'
  gpipe-rs generate --run runs/1 --prompt 'The whale' --tokens 500 --temperature 0.6 --top-k 20
  gpipe-rs generate --weights exported --prompt 'Call me' --devices cpu,cpu --json")]
pub(super) struct Args {
    #[command(flatten)]
    place: Where,
    /// The text to go on with: at least one character, all of them of the text that the
    /// model was trained on.
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// Characters to write.
    #[arg(long, value_name = "N", default_value = "200", allow_negative_numbers = true, value_parser = input::at_least_one)]
    tokens: usize,
    /// Below 1 likely characters become likelier still, above 1 less so; 0 takes the
    /// likeliest each time.
    #[arg(long, value_name = "T", default_value = "0.8", allow_negative_numbers = true, value_parser = temperature)]
    temperature: f64,
    /// Draw among the K likeliest characters only.
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = input::at_least_one)]
    top_k: Option<usize>,
    /// Seed of the draws: the same one gives the same text.
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

pub(super) fn run(args: &Args, zoo: &Zoo) -> Result<(), Failure> {
    if args.prompt.is_empty() {
        return Err(Failure::Usage(
            "--prompt is empty: give at least one character to go on with".to_owned(),
        ));
    }
    let trained = Trained::read(&args.place, zoo)?;
    let vocabulary = trained.vocabulary().map_err(Failure::Usage)?;
    let (context, _) = trained.tokens().map_err(Failure::Usage)?;
    let tokens = vocabulary.encode(&args.prompt);
    let tokens = tokens.map_err(|why| Failure::Usage(format!("--prompt: {why}")))?;
    let mut author = Author {
        pipe: trained.pipeline(&args.on.devices, 1)?,
        context,
        vocabulary,
        rule: Rule {
            temperature: args.temperature,
            top_k: args.top_k,
        },
        sampler: Sampler::new(args.seed),
        tokens,
    };
    if args.json {
        return author.object(args);
    }
    author.stream(args)
}

/// A model that writes.
struct Author<'a> {
    pipe: Pipeline,
    /// Tokens that it sees at most.
    context: usize,
    vocabulary: &'a Vocabulary,
    rule: Rule,
    sampler: Sampler,
    /// What stands there so far.
    tokens: Vec<i64>,
}

impl Author<'_> {
    /// The next character.
    fn next(&mut self) -> Result<char, Failure> {
        let seen = &self.tokens[self.tokens.len().saturating_sub(self.context)..];
        let input = Tensor::from_slice(seen).view([1, -1]);
        let logits = self.pipe.forward(input).map_err(failure)?;
        // A model may know more tokens than its text has characters.
        let known = self.vocabulary.len() as i64;
        let last = logits
            .f_select(0, 0)?
            .f_select(0, -1)?
            .f_narrow(0, 0, known)?;
        let logits = Vec::<f64>::try_from(&last.f_to_kind(Kind::Double)?)?;
        let token = self.rule.draw(&logits, self.sampler.uniform());
        let token = token.ok_or_else(|| {
            anyhow::anyhow!("the model's outputs are not finite: its training has diverged")
        })?;
        self.tokens.push(token as i64);
        Ok(self.vocabulary.decode(token as i64))
    }

    /// Prompt and text on standard output, each character as soon as it is there.
    fn stream(&mut self, args: &Args) -> Result<(), Failure> {
        if !show(&args.prompt)? {
            return Ok(());
        }
        for _ in 0..args.tokens {
            let character = self.next()?;
            if !show(character.encode_utf8(&mut [0; 4]))? {
                return Ok(());
            }
        }
        output::print("\n")
    }

    fn object(&mut self, args: &Args) -> Result<(), Failure> {
        let start = Instant::now();
        let text = (0..args.tokens).map(|_| self.next());
        let text = text.collect::<Result<String, _>>()?;
        output::print(&output::json(&json!({
            "prompt": args.prompt,
            "text": text,
            "tokens": args.tokens,
            "tokens_per_s": args.tokens as f64 / start.elapsed().as_secs_f64(),
        })))
    }
}

/// Writes to standard output at once; false where nobody reads any more.
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
