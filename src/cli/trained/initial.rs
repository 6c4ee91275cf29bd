//! Training from given initial weights.

use std::path::Path;
use std::sync::Arc;

use gpipe_partitioner::words::quoted;
use tch::Tensor;

use super::{Failure, not_finite, run};
use crate::config::Origins;
use crate::feed::{Source, not_data};
use crate::input;
use crate::model::flags::{Given, flag};
use crate::model::{exported, sizes};
use crate::vocabulary::ModelTokenizer;
use gpipe_models::ExportedModel;
use gpipe_models::hugging_face::{self, TokenizerFiles};
use gpipe_models::zoo::Zoo;

/// Initial weights of a run.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) all: Vec<(String, Tensor)>,
    /// Characters of the tokens, if known.
    vocabulary: Option<Vec<char>>,
    /// Tokenizer files beside the weights.
    tokenizer: Option<TokenizerFiles>,
    /// Whether the weights are an exported program's, which have no vocabulary.
    of_program: bool,
    /// A note about the weights.
    pub(crate) note: Option<String>,
}

/// A size that does not affect weights.
const DROPOUT: &str = "dropout";
/// Another one, in models without learned positions.
const CONTEXT: &str = "context";
const ROTARY: &str = "llama";
/// With learned positions, sequences may be shorter than the table of positions.
const POSITIONS: &str = "positions";

/// Whether two texts are the same number.
fn same(one: &str, other: &str) -> bool {
    match (one.trim().parse::<f64>(), other.trim().parse::<f64>()) {
        (Ok(one), Ok(other)) => one.total_cmp(&other).is_eq(),
        _ => one.trim() == other.trim(),
    }
}

/// Reads weights for the requested model and sizes; returns the model of the weights, with the
/// requested sizes applied.
///
/// # Errors
/// There are no weights, or they are of another model.
pub(crate) fn read(
    path: &Path,
    (model, given): (&str, &Given),
    origins: &Origins,
    zoo: &Zoo,
) -> Result<((String, Given), Weights), Failure> {
    if run::is_run(path) {
        return Err(Failure::Usage(format!(
            "--weights {}: this is the folder of a run: `export --run {1} -o DIR` writes its weights into \
             a folder that can be named here, and --resume {1} goes on with the run",
            path.display(),
            quoted(path)
        )));
    }
    not_data::check_weights(path)
        .map_err(|why| Failure::Usage(format!("--weights {}: {why}", path.display())))?;
    if exported::is_exported(model) {
        let weights = of_program(path, Path::new(model)).map_err(Failure::Usage)?;
        return Ok(((model.to_owned(), given.clone()), weights));
    }
    let read = hugging_face::import(zoo, path)
        .map_err(|error| input::in_file("--weights", path, error))?;
    check_finite(path, &read.weights)?;
    let name = read.spec.name();
    let presets = read.spec.entry().presets();
    let preset = presets.iter().find(|own| own.name() == model);
    let named = origins.of("model.name");
    if let Some(origin) = named.filter(|_| model != name && preset.is_none()) {
        return Err(Failure::Usage(format!(
            "--weights {}: they are those of a `{name}`, but the model is `{model}` ({origin}): leave it \
             out, as the weights decide the model",
            path.display(),
        )));
    }
    let mut sizes = shortened(sizes(&read.spec), given);
    let of_preset = preset.into_iter().flat_map(|own| own.values());
    for (size, value) in of_preset.filter(|(size, _)| *size != DROPOUT) {
        let own = sizes.iter().find(|(own, _)| own == size);
        let chosen = given.iter().any(|(own, _)| own == size);
        if let Some((_, own)) = own.filter(|(_, own)| !chosen && !same(own, &value.to_string())) {
            return Err(Failure::Usage(format!(
                "--weights {}: they are those of a `{name}` with {size}={own}, but `{model}` has \
                 {size}={value}: leave --model out, as the weights decide the model",
                path.display(),
            )));
        }
    }
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
        of_program: false,
        note: read.prefix.map(|own| wrapped(path, &own)),
    };
    Ok((chosen, weights))
}

/// Applies a requested shorter context to the sizes of the weights; the table of positions keeps its
/// size.
fn shortened(mut own: Given, asked: &Given) -> Given {
    let of = |all: &Given, name: &str| {
        let mut all = all.iter();
        let (_, value) = all.find(|(size, _)| size == name)?;
        value.trim().parse::<i64>().ok()
    };
    let has_table = own.iter().any(|(size, _)| size == POSITIONS);
    if let (Some(table), Some(context), true) = (of(&own, CONTEXT), of(asked, CONTEXT), has_table)
        && (1..table).contains(&context)
    {
        own.retain(|(size, _)| size != CONTEXT && size != POSITIONS);
        own.push((CONTEXT.to_owned(), context.to_string()));
        own.push((POSITIONS.to_owned(), table.to_string()));
    }
    own
}

/// Checks that all weights are finite.
fn check_finite(path: &Path, weights: &[(String, Tensor)]) -> Result<(), Failure> {
    match not_finite(weights)? {
        None => Ok(()),
        Some(name) => Err(Failure::Usage(format!(
            "--weights {}: `{name}` has numbers that are NaN or infinite, and nothing can be trained \
             from them",
            path.display()
        ))),
    }
}

/// Reads an exported program's `state_dict` from a file, or from a folder as `export` writes it.
///
/// Buffers may be masks with infinities, so non-finite values are reported only in training.
fn of_program(path: &Path, model: &Path) -> Result<Weights, String> {
    let program = ExportedModel::open(model).map_err(|error| format!("--model {error}"))?;
    let file = if path.is_dir() {
        path.join("model.safetensors")
    } else {
        path.to_owned()
    };
    let wrong = |why: String| format!("--weights {}: {why}", file.display());
    if !file.exists() {
        return Err(wrong("there is no such file".to_owned()));
    }
    let read = Tensor::read_safetensors(&file);
    let read = read.map_err(|error| {
        wrong(format!(
            "this is no safetensors file of a state_dict, as `export` and \
             safetensors.torch.save_file write it: {error}"
        ))
    })?;
    let note = program.prefix(&read).map(|own| wrapped(&file, own));
    let note = note.or_else(|| {
        let prefix = program.missing_prefix(&read)?;
        Some(format!(
            "note: --weights {}: every name of the program begins with `{prefix}`, as where a wrapper of \
             the model was exported: the names are taken with it",
            file.display()
        ))
    });
    let all = program.weights(read);
    Ok(Weights {
        all: all.map_err(|error| wrong(format!("{error:#}")))?,
        vocabulary: None,
        tokenizer: None,
        of_program: true,
        note,
    })
}

/// Notes that a common prefix of the names in a file is ignored.
pub(super) fn wrapped(path: &Path, prefix: &str) -> String {
    format!(
        "note: --weights {}: every name begins with `{prefix}`, as where a wrapper of the model was saved \
         (DistributedDataParallel, torch.compile): the names are taken without it",
        path.display()
    )
}

impl Weights {
    /// Returns the tokenizer, if tokens are not characters.
    ///
    /// # Errors
    /// The tokenizer's kind is not supported.
    pub(crate) fn tokenizer(&self) -> Result<Option<Arc<ModelTokenizer>>, Failure> {
        let own = self.tokenizer.clone().filter(|_| self.vocabulary.is_none());
        let read = own.map(ModelTokenizer::of).transpose();
        read.map_err(|why| Failure::Usage(format!("--weights: {why}")))
    }

    /// Checks that the requested tokenizer is the one beside the weights, if there is one.
    pub(crate) fn check_tokenizer(
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

    /// Checks that the data has the vocabulary that the weights were trained on.
    pub(crate) fn check(&self, source: &Source) -> Result<(), Failure> {
        let Some((set, _)) = source.text().filter(|_| !self.of_program) else {
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
