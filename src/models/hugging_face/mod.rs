//! Converts weights between this library and Hugging Face's `transformers`.
//!
//! The zoo's model `gpt` computes the same as `transformers`' `GPT2LMHeadModel`, and its `llama` the
//! same as `LlamaForCausalLM`, `MistralForCausalLM`, `Qwen2ForCausalLM` and `Qwen3ForCausalLM`; only
//! names and, for GPT-2, the layout of matrices differ. [`export`] writes a folder for
//! `from_pretrained`, [`import`] reads one; no bit of a weight changes.
//!
//! ```
//! use gpipe::models::{hugging_face, zoo::Zoo};
//! use gpipe::{Pipeline, tch::Device};
//!
//! let zoo = Zoo::builtin();
//! let spec = zoo.spec("llama", ["layers=1", "d-model=16", "d-ff=24", "vocab=11"])?;
//! let mut pipe = Pipeline::new(spec.build(), &[Device::Cpu], 1)?;
//! let folder = std::env::temp_dir().join(format!("exported-{}", std::process::id()));
//! hugging_face::export(&folder, &spec, &pipe.parameters()?, None)?;
//!
//! let read = hugging_face::import(&zoo, &folder)?;
//! assert_eq!(read.spec.settings(), spec.settings());
//! pipe.load(&read.weights)?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod architecture;
mod beside;
mod config;
mod error;
mod folder;
mod names;
mod tensors;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tch::Tensor;

use super::zoo::{ModelSpec, Zoo};
use architecture::Architecture;
use beside::TokenIds;
use folder::Folder;
pub use folder::hub_hint;
use gpipe_torch::Variable;

pub use beside::TokenizerFiles;
pub use error::HuggingFaceError;

/// An imported model.
#[derive(Debug)]
pub struct Imported {
    /// The model, with the sizes of the weights.
    pub spec: ModelSpec,
    /// Every parameter by its name in the model, on the CPU, in single precision.
    pub weights: Vec<(String, Tensor)>,
    /// The characters of tokens, if the tokenizer beside the weights has one token per character, as
    /// [`export`] writes it.
    pub vocabulary: Option<Vec<char>>,
    /// The tokenizer beside the weights, of any kind.
    pub tokenizer: Option<TokenizerFiles>,
    /// The removed prefix of all names in the file, if a wrapper's `state_dict` was saved: `module.` of
    /// `DistributedDataParallel`, `_orig_mod.` of `torch.compile`.
    pub prefix: Option<String>,
}

/// Whether `transformers` has a counterpart of the model, so that [`export`] can write its weights.
pub fn has(spec: &ModelSpec) -> bool {
    Architecture::of(spec).is_ok()
}

/// Writes weights with `transformers`' names, with the `config.json` that it needs and, for character
/// models, a tokenizer.
///
/// `path` is a folder, created if missing, or the name of a `.safetensors` file. An existing file is
/// replaced atomically; a `config.json` of another model is not.
///
/// *Returns* the files written, the weights first.
///
/// # Errors
/// [`HuggingFaceError`]: the model is neither a `gpt` nor a `llama`, a parameter is missing in
/// `weights`, or a file cannot be written.
pub fn export(
    path: &Path,
    spec: &ModelSpec,
    weights: &[(String, Tensor)],
    vocabulary: Option<&[char]>,
) -> Result<Vec<PathBuf>, HuggingFaceError> {
    let tokenizer = vocabulary.map(TokenizerFiles::of_characters);
    export_with(path, spec, weights, tokenizer.as_ref())
}

/// Like [`export`], with the files of a tokenizer from [`import`] or [`TokenizerFiles::read`], written
/// unchanged.
///
/// # Errors
/// As [`export`].
pub fn export_with(
    path: &Path,
    spec: &ModelSpec,
    weights: &[(String, Tensor)],
    tokenizer: Option<&TokenizerFiles>,
) -> Result<Vec<PathBuf>, HuggingFaceError> {
    let architecture = Architecture::of(spec)?;
    let own: BTreeMap<&str, &Tensor> = (weights.iter())
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    let mut theirs = Vec::new();
    for variable in variables(spec)? {
        let name = architecture.theirs(variable.name());
        let tensor = own.get(variable.name());
        let tensor = tensor.ok_or_else(|| HuggingFaceError::Missing {
            name: variable.name().to_owned(),
            file: None,
        })?;
        theirs.push((name.name.clone(), name.turned(tensor)?));
    }
    let none = TokenIds::default();
    let ids = tokenizer.map_or(&none, TokenizerFiles::ids);
    let config = config::write(architecture, spec.settings(), ids);
    let config = config.map_err(|why| HuggingFaceError::Model(anyhow::Error::msg(why)))?;
    let files = tokenizer.map(TokenizerFiles::files).unwrap_or_default();
    folder::write(path, theirs, &config, files)
}

/// Reads a model from a folder with `config.json` and `model.safetensors` (or the shards in
/// `model.safetensors.index.json`), or from a `.safetensors` file with a `config.json` beside it.
///
/// Weights in half precision are widened without loss.
///
/// # Errors
/// [`HuggingFaceError`]: a file is missing or damaged, the model has features that neither `gpt` nor
/// `llama` has, or a parameter is missing or has another shape.
pub fn import(zoo: &Zoo, path: &Path) -> Result<Imported, HuggingFaceError> {
    let folder = Folder::open(path)?;
    let config = folder.config()?;
    let (architecture, settings) =
        config::read(&config.value).map_err(|rule| HuggingFaceError::Config {
            path: config.path,
            rule,
        })?;
    let spec = zoo.spec(architecture.entry(), settings)?;
    let (weights, prefix) = read(&folder, architecture, &spec)?;
    let tokenizer = TokenizerFiles::read(&folder.tokenizer())?;
    let characters = tokenizer.as_ref().map(TokenizerFiles::characters);
    Ok(Imported {
        spec,
        weights,
        vocabulary: characters.flatten(),
        tokenizer,
        prefix,
    })
}

/// Reads the weights of a model of known sizes, from a folder or a `.safetensors` file like [`import`],
/// without a `config.json`.
///
/// # Errors
/// As [`import`].
pub fn weights(path: &Path, spec: &ModelSpec) -> Result<Vec<(String, Tensor)>, HuggingFaceError> {
    let folder = Folder::open(path)?;
    let (weights, _) = read(&folder, Architecture::of(spec)?, spec)?;
    Ok(weights)
}

/// The weights, and the removed prefix of names.
type Read = (Vec<(String, Tensor)>, Option<String>);

fn read(
    folder: &Folder,
    architecture: Architecture,
    spec: &ModelSpec,
) -> Result<Read, HuggingFaceError> {
    let mut files = folder.tensors()?;
    let mut weights = Vec::new();
    let variables = variables(spec)?;
    let first = variables.first().map(|own| architecture.theirs(own.name()));
    let prefix = first.and_then(|own| files.unwrap_names(&own.name, architecture.prefix()));
    let prefix = prefix.map(str::to_owned);
    for variable in variables {
        let name = architecture.theirs(variable.name());
        let found = files.take(&name.name, architecture.prefix())?;
        let found = found.ok_or_else(|| HuggingFaceError::Missing {
            name: name.name.clone(),
            file: Some(folder.shown()),
        })?;
        let tensor = name.turned(&found)?;
        if tensor.size() != variable.shape() {
            return Err(HuggingFaceError::Shape {
                wanted: name.shape(variable.shape()),
                shape: found.size(),
                name: name.name,
            });
        }
        weights.push((variable.name().to_owned(), tensor));
    }
    architecture.check_rest(&mut files, &weights)?;
    Ok((weights, prefix))
}

/// Returns the parameters of a model, tied ones once.
fn variables(spec: &ModelSpec) -> Result<Vec<Variable>, HuggingFaceError> {
    let all = spec.build().distinct_variables();
    all.map_err(HuggingFaceError::Model)
}
