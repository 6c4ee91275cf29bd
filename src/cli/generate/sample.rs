//! A few lines of text from the trained model.

use tch::{Kind, Tensor};

use crate::Pipeline;
use crate::data::{Sampler, Split, TextSet};
use crate::train::Stop;

/// Characters to write.
const LENGTH: usize = 240;
/// Below 1: likely characters become likelier still, which reads better.
const TEMPERATURE: f64 = 0.8;

/// Continues the beginning of the held-out text until somebody asks for the end, under a title that
/// has that beginning; says why where the model cannot.
pub(in crate::cli) fn generate(
    pipe: &mut Pipeline,
    (text, seq): (&TextSet, usize),
    seed: u64,
    stop: &Stop,
) -> String {
    let written = continued(pipe, (text, seq), seed, stop);
    let titled = written.map(|(begin, written)| {
        let title =
            format!("sample: the held-out text begins {begin:?}, and the model goes on with");
        format!("{title}\n\n{}", written.trim_start_matches(['\n', '\r']))
    });
    titled.unwrap_or_else(|error| format!("(no sample of what it writes: {error:#})"))
}

fn continued(
    pipe: &mut Pipeline,
    (text, seq): (&TextSet, usize),
    seed: u64,
    stop: &Stop,
) -> anyhow::Result<(String, String)> {
    let start = (seq / 4).max(1);
    let mut tokens: Vec<i64> = text
        .part(Split::HeldOut)
        .iter()
        .take(start)
        .map(|&token| i64::from(token))
        .collect();
    let begin = tokens.len();
    let known = text.vocabulary().len() as i64;
    let mut sampler = Sampler::new(seed);
    for _ in 0..LENGTH {
        if stop.is_asked() {
            break;
        }
        let seen = &tokens[tokens.len().saturating_sub(seq)..];
        let input = Tensor::from_slice(seen).view([1, -1]);
        let logits = pipe.forward(input)?.f_select(0, 0)?.f_select(0, -1)?;
        // A model may know more tokens than the text has characters.
        let last = logits.f_narrow(0, 0, known)?.f_to_kind(Kind::Float)?;
        let odds = last
            .f_div_scalar(TEMPERATURE)?
            .f_softmax(-1, Kind::Double)?;
        tokens.push(draw(&Vec::<f64>::try_from(&odds)?, sampler.uniform()));
    }
    let decoded = |tokens: &[i64]| tokens.iter().map(|&token| text.decode(token)).collect();
    Ok((decoded(&tokens[..begin]), decoded(&tokens[begin..])))
}

/// The index at which the running sum of `odds` passes `point`.
fn draw(odds: &[f64], point: f64) -> i64 {
    let mut sum = 0.0;
    let passes = |odd: &f64| {
        sum += odd;
        sum > point
    };
    let last = odds.len().saturating_sub(1);
    odds.iter().position(passes).unwrap_or(last) as i64
}
