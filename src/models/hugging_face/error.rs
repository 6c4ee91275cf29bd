//! Errors of reading and writing foreign weights.

use std::path::PathBuf;

use thiserror::Error;

use crate::zoo::ZooError;
use gpipe_torch::TorchError;

/// An error of writing or reading weights.
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
        /// The problem.
        why: String,
    },
    /// The model of a `config.json` is not supported.
    #[error("{}: {rule}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The required value.
        rule: String,
    },
    /// A parameter is missing.
    #[error(
        "there is no tensor `{name}`{}",
        file.as_ref().map_or_else(String::new, |file| format!(" in {}", file.display()))
    )]
    Missing {
        /// The parameter.
        name: String,
        /// The file that was searched, if any.
        file: Option<PathBuf>,
    },
    /// A parameter's shape differs from the model's.
    #[error("`{name}` has shape {shape:?}, but the model's sizes make it {wanted:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Shape in the file.
        shape: Vec<i64>,
        /// Shape by the model's sizes.
        wanted: Vec<i64>,
    },
    /// The file has a tensor that the model does not.
    #[error("{}: the model has no place for `{name}`: {why}", path.display())]
    Extra {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Why that matters.
        why: String,
    },
    /// The sizes are invalid.
    #[error(transparent)]
    Sizes(#[from] ZooError),
    /// The model cannot be described.
    #[error("{0:#}")]
    Model(anyhow::Error),
    /// An error of libtorch.
    #[error(transparent)]
    Torch(#[from] TorchError),
}

impl From<tch::TchError> for HuggingFaceError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}
