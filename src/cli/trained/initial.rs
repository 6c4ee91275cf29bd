//! Training that begins with weights from elsewhere.

use std::path::Path;

use tch::Tensor;

use super::{Failure, not_finite};
use crate::cli::config::Origins;
use crate::cli::feed::Source;
use crate::cli::model::flags::{Given, flag};
use crate::cli::model::sizes;
use crate::models::hugging_face;
use crate::models::zoo::Zoo;

/// What a run begins with.
#[derive(Debug)]
pub(in crate::cli) struct Weights {
    pub(in crate::cli) all: Vec<(String, Tensor)>,
    /// The characters that tokens stand for, where that is known.
    vocabulary: Option<Vec<char>>,
}

/// The one size that says nothing of weights.
const DROPOUT: &str = "dropout";

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
        if let Some((_, own)) = own.filter(|(_, own)| size != DROPOUT && !same(own, value)) {
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
    };
    Ok((chosen, weights))
}

impl Weights {
    /// That the data's tokens stand for what the weights have learned of them.
    pub(in crate::cli) fn check(&self, source: &Source) -> Result<(), Failure> {
        let Some((set, _)) = source.text() else {
            return Ok(());
        };
        let why = match &self.vocabulary {
            Some(own) if own == set.vocabulary() => return Ok(()),
            Some(_) => "its tokens stand for other characters than those of the text",
            None => "nothing says that its tokens stand for characters",
        };
        Err(Failure::Usage(format!(
            "--weights: {why} {}: name a file of its own tokens with --data FILE.bin, or the text that it \
             was trained on",
            source.name()
        )))
    }
}
