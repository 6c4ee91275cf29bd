//! What can be wrong with weights from elsewhere.

use std::path::PathBuf;

use thiserror::Error;

use crate::zoo::ZooError;
use gpipe_torch::TorchError;

/// Why weights could not be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HuggingFaceError {
    /// `transformers` has no counterpart of the model.
    #[error(
        "weights go to and from transformers for the models `gpt` and `llama` and their presets, \
         not for `{model}`"
    )]
    Unknown {
        /// The model.
        model: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the list.
        why: String,
    },
    /// The model of a `config.json` is none of ours.
    #[error("{}: {rule}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What it must say.
        rule: String,
    },
    /// A parameter is not there.
    #[error(
        "there is no tensor `{name}`{}",
        file.as_ref().map_or_else(String::new, |file| format!(" in {}", file.display()))
    )]
    Missing {
        /// The parameter.
        name: String,
        /// Where it was looked for, if in a file.
        file: Option<PathBuf>,
    },
    /// A parameter has another shape than the model's.
    #[error("`{name}` has shape {shape:?}, but the model's sizes make it {wanted:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// In the file.
        shape: Vec<i64>,
        /// By the sizes.
        wanted: Vec<i64>,
    },
    /// The file has a tensor that the model has no place for.
    #[error("{}: the model has no place for `{name}`: {why}", path.display())]
    Extra {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Why that matters.
        why: String,
    },
    /// No model has these sizes.
    #[error(transparent)]
    Sizes(#[from] ZooError),
    /// The model cannot be described.
    #[error("{0:#}")]
    Model(anyhow::Error),
    /// libtorch refused.
    #[error(transparent)]
    Torch(#[from] TorchError),
}

impl From<tch::TchError> for HuggingFaceError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}
