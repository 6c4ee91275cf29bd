//! Generates a few lines of text after training.

use tch::Kind;

use super::logits::Growing;
use crate::vocabulary::{Reader, Vocabulary};
use gpipe_data::Sampler;
use gpipe_models::zoo::ModelSpec;
use gpipe_torch::Pipeline;
use gpipe_train::Stop;

/// Number of characters.
const LENGTH: usize = 240;
/// Below 1: likely characters become likelier, which reads better.
const TEMPERATURE: f64 = 0.8;

/// A prompt and its vocabulary.
pub(crate) struct Beginning<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) vocabulary: Vocabulary,
    /// First tokens of the held-out text.
    pub(crate) tokens: Vec<i64>,
    /// Sequence length.
    pub(crate) seq: usize,
}

/// Continues the beginning of the held-out text until a stop is requested, under a title with the
/// prompt; on failure, returns the reason.
pub(crate) fn generate(
    pipe: &mut Pipeline,
    beginning: &Beginning<'_>,
    seed: u64,
    stop: &Stop,
) -> String {
    let written = continued(pipe, beginning, seed, stop);
    let titled = written.map(|(begin, written)| {
        let title =
            format!("sample: the held-out text begins {begin:?}, and the model goes on with");
        format!("{title}\n\n{}", written.trim_start_matches(['\n', '\r']))
    });
    titled.unwrap_or_else(|error| format!("(no sample of what it writes: {error:#})"))
}

fn continued(
    pipe: &mut Pipeline,
    beginning: &Beginning<'_>,
    seed: u64,
    stop: &Stop,
) -> anyhow::Result<(String, String)> {
    let Beginning {
        spec,
        vocabulary,
        tokens,
        seq,
    } = beginning;
    let sizes = (*seq, vocabulary.len());
    let mut text = Growing::new(pipe, spec, sizes, tokens.clone());
    let mut sampler = Sampler::new(seed);
    for _ in 0..length(vocabulary) {
        if stop.is_asked() {
            break;
        }
        let odds = text
            .logits()?
            .f_div_scalar(TEMPERATURE)?
            .f_softmax(-1, Kind::Double)?;
        text.push(draw(&Vec::<f64>::try_from(&odds)?, sampler.uniform()));
    }
    let (begin, written) = text.tokens().split_at(tokens.len());
    Ok((
        read(vocabulary.reader(&[]), begin)?,
        read(vocabulary.reader(begin), written)?,
    ))
}

/// Number of tokens.
fn length(vocabulary: &Vocabulary) -> usize {
    match vocabulary {
        Vocabulary::Characters(_) => LENGTH,
        // Tokens have several characters.
        Vocabulary::Tokenizer(_) => LENGTH / 4,
    }
}

fn read(mut reader: Reader<'_>, tokens: &[i64]) -> anyhow::Result<String> {
    let text = tokens.iter().map(|&token| reader.push(token));
    let text: String = text.collect::<anyhow::Result<_>>()?;
    Ok(text + &reader.rest()?)
}

/// Returns the index at which the running sum of `odds` passes `point`.
fn draw(odds: &[f64], point: f64) -> i64 {
    let mut sum = 0.0;
    let passes = |odd: &f64| {
        sum += odd;
        sum > point
    };
    let last = odds.len().saturating_sub(1);
    odds.iter().position(passes).unwrap_or(last) as i64
}
