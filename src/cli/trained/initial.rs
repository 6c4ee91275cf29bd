//! Training that begins with weights from elsewhere.

use std::path::Path;
use std::sync::Arc;

use tch::Tensor;

use super::{Failure, ModelTokenizer, not_finite};
use crate::cli::config::Origins;
use crate::cli::feed::Source;
use crate::cli::model::flags::{Given, flag};
use crate::cli::model::sizes;
use crate::models::hugging_face::{self, TokenizerFiles};
use crate::models::zoo::Zoo;

/// What a run begins with.
#[derive(Debug)]
pub(in crate::cli) struct Weights {
    pub(in crate::cli) all: Vec<(String, Tensor)>,
    /// The characters that tokens stand for, where that is known.
    vocabulary: Option<Vec<char>>,
    /// What is beside the weights, of whatever kind.
    tokenizer: Option<TokenizerFiles>,
}

/// A size that says nothing of weights.
const DROPOUT: &str = "dropout";
/// Another one, where positions are no parameters.
const CONTEXT: &str = "context";
const ROTARY: &str = "llama";

/// Whether two texts are the same number.
fn same(one: &str, other: &str) -> bool {
    match (one.trim().parse::<f64>(), other.trim().parse::<f64>()) {
        (Ok(one), Ok(other)) => one.total_cmp(&other).is_eq(),
        _ => one.trim() == other.trim(),
    }
}

/// Reads weights, for the model and the sizes that were asked for; gives those of the weights,
/// with the sizes that were asked for on top.
///
/// # Errors
/// There are none, or they are another model's: which.
pub(in crate::cli) fn read(
    path: &Path,
    (model, given): (&str, &Given),
    origins: &Origins,
    zoo: &Zoo,
) -> Result<((String, Given), Weights), Failure> {
    let read = hugging_face::import(zoo, path)
        .map_err(|error| Failure::Usage(format!("--weights: {error}")))?;
    if let Some(name) = not_finite(&read.weights)? {
        return Err(Failure::Usage(format!(
            "--weights {}: `{name}` has numbers that are NaN or infinite, and nothing can be trained \
             from them",
            path.display()
        )));
    }
    let name = read.spec.name();
    if let Some(origin) = origins.of("model.name").filter(|_| model != name) {
        return Err(Failure::Usage(format!(
            "--weights {}: they are those of a `{name}`, but the model is `{}` ({origin}): leave it out",
            path.display(),
            model
        )));
    }
    let mut sizes = sizes(&read.spec);
    for (size, value) in given {
        let own = sizes.iter().find(|(own, _)| own == size);
        let free = size == DROPOUT || (size == CONTEXT && name == ROTARY);
        if let Some((_, own)) = own.filter(|(_, own)| !free && !same(own, value)) {
            return Err(Failure::Usage(format!(
                "--weights {}: they are those of a model with {size}={own}, not {value} ({}): leave it out",
                path.display(),
                flag(size)
            )));
        }
        sizes.retain(|(own, _)| own != size);
        sizes.push((size.clone(), value.clone()));
    }
    let chosen = (name.to_owned(), sizes);
    let weights = Weights {
        all: read.weights,
        vocabulary: read.vocabulary,
        tokenizer: read.tokenizer,
    };
    Ok((chosen, weights))
}

impl Weights {
    /// What its tokens stand for, where they are no characters.
    ///
    /// # Errors
    /// The tokenizer is of no kind that is known.
    pub(in crate::cli) fn tokenizer(&self) -> Result<Option<Arc<ModelTokenizer>>, Failure> {
        let own = self.tokenizer.clone().filter(|_| self.vocabulary.is_none());
        let read = own.map(ModelTokenizer::of).transpose();
        read.map_err(|why| Failure::Usage(format!("--weights: {why}")))
    }

    /// That texts are read by the tokenizer that is beside the weights, if there is one.
    pub(in crate::cli) fn check_tokenizer(
        &self,
        tokenizer: Option<&ModelTokenizer>,
    ) -> Result<(), Failure> {
        if let (Some(own), Some(other)) = (&self.tokenizer, tokenizer)
            && own.tokenizer() != other.files().tokenizer()
        {
            return Err(Failure::Usage(
                "--tokenizer: the weights have another one beside them, whose tokens they have \
                 learned: leave it out"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// That the data's tokens stand for what the weights have learned of them.
    pub(in crate::cli) fn check(&self, source: &Source) -> Result<(), Failure> {
        let Some((set, _)) = source.text() else {
            return Ok(());
        };
        let why = match &self.vocabulary {
            Some(own) if own == set.vocabulary() => return Ok(()),
            Some(_) => "its tokens stand for other characters than those of the text",
            None => {
                "there is no tokenizer.json beside them, and nothing says that its tokens stand for \
                     characters as in"
            }
        };
        Err(Failure::Usage(format!(
            "--weights: {why} {}: name the model's tokenizer with --tokenizer PATH, a file of its own \
             tokens with --data FILE.bin, or the text that it was trained on",
            source.name()
        )))
    }
}
