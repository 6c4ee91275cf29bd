//! Separate evaluation data, in place of a held-out share.

use std::path::Path;

use super::batches::{HeldOut, Judged};
use super::learned::{Learned, Pace};
use super::model_fit::{self, What};
use super::not_data;
use super::read::Read;
use super::samples::{self, DataOptions};
use super::{Source, is_tokens, remote};
use crate::model::Chosen;
use crate::vocabulary::{ModelTokenizer, Vocabulary};
use gpipe_data::{Part, TextSet, Tokens};

/// Separate evaluation data of a run.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one of a run")]
pub(crate) enum EvalData {
    /// Windows of this length.
    Tokens(Tokens, usize),
    /// A part of samples, loaded at this pace.
    Samples(Learned, Part, Pace),
}

impl EvalData {
    /// Reads evaluation data with the tokens, classes and scales of `source`. Of samples with a test
    /// part, only the test part is used.
    ///
    /// # Errors
    /// The data cannot be read, or the model does not take it.
    pub(crate) fn read(
        path: &Path,
        (chosen, source): (&Chosen, &Source),
        tokenizer: Option<&ModelTokenizer>,
        options: &DataOptions,
    ) -> Result<Self, String> {
        let path = &*remote::local(path)?;
        not_data::check_several(path)?;
        match source {
            Source::Text { .. } | Source::Tokens { .. } => {
                let tokens = tokens(path, source, tokenizer)?;
                let seq = model_fit::window(chosen, What::Tokens, tokens.vocabulary())?;
                if tokens.len() <= seq {
                    return Err(format!(
                        "it is too short: {} tokens, and a sequence has {seq}",
                        tokens.len()
                    ));
                }
                Ok(Self::Tokens(tokens, seq))
            }
            Source::Samples { pace, .. } => {
                let options = DataOptions {
                    kept: source.kept(),
                    held_out: 0.0,
                    augment: false,
                    ..options.clone()
                };
                let found = samples::choose(chosen, Some(path), &options)?;
                let (_, learned) = found.ok_or("there are no samples")?;
                let part = match learned.held_out_len() {
                    0 => Part::All,
                    _ => Part::HeldOut,
                };
                Ok(Self::Samples(learned, part, *pace))
            }
            Source::Synthetic(_) => Err(
                "what is made up can be evaluated on nothing else: name what to train on with \
                 --data, too"
                    .to_owned(),
            ),
        }
    }

    /// Returns batches: see [`HeldOut::new`].
    pub(crate) fn batches(
        &self,
        samples: usize,
        most: Option<usize>,
        takes: impl Fn(usize) -> bool,
    ) -> Option<HeldOut<'_>> {
        if most == Some(0) {
            return None;
        }
        let from = match self {
            Self::Tokens(tokens, seq) => Judged::Windows(tokens, *seq),
            Self::Samples(learned, part, pace) => Judged::Samples(learned, *part, *pace),
        };
        Some(HeldOut::new(from, samples, most, takes))
    }
}

/// Reads a file's tokens in the training data's vocabulary.
fn tokens(
    path: &Path,
    source: &Source,
    tokenizer: Option<&ModelTokenizer>,
) -> Result<Tokens, String> {
    if is_tokens(path) {
        if path.is_dir() {
            return Err("it has two files of tokens: name the one to judge by".to_owned());
        }
        let tokens = Tokens::open(path).map_err(|error| error.to_string())?;
        tokens.check_ends().map_err(|error| error.to_string())?;
        return Ok(tokens);
    }
    let text = || TextSet::read_text(path).map_err(|error| error.to_string());
    match (source.text(), tokenizer) {
        (Some((set, _)), _) => {
            let numbers = Vocabulary::of_characters(set.vocabulary()).encode(&text()?)?;
            let numbers = numbers.into_iter().map(|token| token as u32);
            Ok(Tokens::new(numbers.collect()))
        }
        (None, Some(tokenizer)) => Ok(Read::tokenized(&text()?, None, tokenizer)?.into_tokens()),
        (None, None) => Err(
            "what is trained on is a file of tokens: name another one (.bin), or the tokenizer of \
             both with --tokenizer"
                .to_owned(),
        ),
    }
}
