//! Checks that data fits a model.

use crate::model::Chosen;
use crate::model::flags::flag;
use crate::models::shapes;
use gpipe_data::Tokens;
use gpipe_models::zoo::{Fill, ModelSpec, Synthetic};

/// Limit of the values in a mini-batch's inputs and targets: tens of gigabytes are a typing error.
const MAX_VALUES: i64 = 1 << 32;

/// The kind of data named by `--data`, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Text,
    /// A text as the tokens of a tokenizer.
    Tokenized,
    Tokens,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Text | Self::Tokenized => "text",
            Self::Tokens => "file of tokens",
        }
    }

    /// The plural of its units.
    fn units(self) -> &'static str {
        match self {
            Self::Text => "characters",
            Self::Tokenized | Self::Tokens => "tokens",
        }
    }
}

/// Rejects a mini-batch so large that it must be a typing error.
pub(crate) fn check_batch(spec: &ModelSpec, batch: usize) -> Result<(), String> {
    let values = |one: &Synthetic| {
        let sides = one.shape().iter();
        sides.fold(1_i64, |product, side| product.saturating_mul(*side))
    };
    let all = spec.inputs().iter().chain(spec.targets());
    let sample = all.fold(0_i64, |sum, one| sum.saturating_add(values(one)));
    let batch = i64::try_from(batch).unwrap_or(i64::MAX);
    if batch.saturating_mul(sample) <= MAX_VALUES {
        return Ok(());
    }
    Err(format!(
        "--batch {batch}: a sample of `{}` has {sample} values with its target, and a step at \
         most {MAX_VALUES}",
        spec.name()
    ))
}

/// Returns the tokens per sample, if samples are token sequences.
pub(crate) fn tokens(spec: &ModelSpec) -> Option<usize> {
    match spec.inputs() {
        [input] if input.is_tokens() => usize::try_from(input.shape()[0]).ok(),
        _ => None,
    }
}

/// Sets the model's vocabulary size, unless the user chose it or the model has none.
pub(super) fn adapted(chosen: &Chosen, vocabulary: usize) -> Result<Chosen, String> {
    if !chosen.has("vocab") || chosen.chose("vocab") {
        return Ok(chosen.clone());
    }
    let setting = format!("vocab={}", vocabulary.max(1));
    chosen.with(&[setting]).map_err(|error| error.to_string())
}

/// Returns the window length for this model, or why it cannot use the data.
pub(super) fn window(chosen: &Chosen, of: What, known: usize) -> Result<usize, String> {
    let (spec, what) = (&chosen.spec, of.name());
    let name = spec.name();
    let sequence = |all: &[Synthetic]| match all {
        [one] if one.is_tokens() => match one.fill() {
            Fill::Classes(classes) => Some((one.shape()[0], classes)),
            _ => None,
        },
        _ => None,
    };
    let (Some((length, tokens)), Some((targets, classes))) =
        (sequence(spec.inputs()), sequence(spec.targets()))
    else {
        return Err(format!(
            "a {what} is for models that give a token for each of a sequence; `{name}` maps {} to {}; \
             --model gpt is such a model",
            shapes(spec.inputs()),
            shapes(spec.targets())
        ));
    };
    if length != targets {
        return Err(format!(
            "`{name}` has {targets} targets for {length} tokens, a {what} one for each"
        ));
    }
    if spec.sees_later_tokens() {
        return Err(format!(
            "`{name}` sees the tokens after each one: it would copy the next, not learn to tell it"
        ));
    }
    let fewest = tokens.min(classes);
    if fewest < known as i64 && of == What::Tokenized {
        return Err(format!(
            "the tokenizer has {known} tokens, but `{name}` knows {fewest}: it is that of another \
             model"
        ));
    }
    if fewest < known as i64 {
        let more = if chosen.has("vocab") {
            format!(": use {} {known}", flag("vocab"))
        } else {
            String::new()
        };
        return Err(format!(
            "the {what} has {known} distinct {}, but `{name}` knows {fewest} tokens{more}",
            of.units()
        ));
    }
    Ok(usize::try_from(length).unwrap_or(usize::MAX))
}

/// Checks that both parts of the tokens hold a window of `seq` and its next token.
pub(super) fn require(tokens: &Tokens, of: What, seq: usize, share: f64) -> Result<(), String> {
    let window = seq.saturating_add(1);
    let parts = [share, 1.0 - share]
        .into_iter()
        .filter(|share| *share > 0.0);
    let smallest = parts.fold(1.0, f64::min);
    let needed = (window as f64 / smallest).ceil() as usize;
    if tokens.len() >= needed {
        return Ok(());
    }
    let (what, units) = (of.name(), of.units());
    Err(format!(
        "the {what} is too short: {} {units}, but a sequence of {seq} needs {needed} so that {} can be held out",
        tokens.len(),
        held_out(share)
    ))
}

/// Formats a share in words.
fn held_out(share: f64) -> String {
    match share {
        _ if share.total_cmp(&0.1).is_eq() => "a tenth".to_owned(),
        share if share > 0.0 => format!("a share of {share}"),
        _ => "none".to_owned(),
    }
}
