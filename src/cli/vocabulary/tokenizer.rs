//! A `tokenizer.json` that is saved with its model.

use std::path::Path;
use std::sync::Arc;

use gpipe_partitioner::words::path_instead;
use serde_json::Value;

use gpipe_data::Tokenizer;
use gpipe_models::hugging_face::TokenizerFiles;

/// A tokenizer and the files that it was read from.
#[derive(Debug)]
pub(crate) struct ModelTokenizer {
    tokenizer: Tokenizer,
    files: TokenizerFiles,
}

impl ModelTokenizer {
    /// Reads a tokenizer from a file or from its folder.
    ///
    /// # Errors
    /// There is no tokenizer, or it is damaged.
    pub(crate) fn read(path: &Path) -> Result<Arc<Self>, String> {
        let files = TokenizerFiles::read(path).map_err(|error| error.to_string())?;
        let files = files.ok_or_else(|| match path_instead(path) {
            _ if path.exists() => format!(
                "{}: there is no tokenizer.json: copy that of the model there",
                path.display()
            ),
            near => format!("{}: there is no such file or folder{near}", path.display()),
        })?;
        Self::of(files).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Parses a tokenizer from its files.
    ///
    /// # Errors
    /// The tokenizer's kind is not supported.
    pub(crate) fn of(files: TokenizerFiles) -> Result<Arc<Self>, String> {
        let tokenizer = Tokenizer::parse(files.tokenizer().as_bytes());
        let tokenizer = tokenizer
            .map_err(|error| format!("tokenizer.json is none that can be read: {error:#}"))?;
        Ok(Arc::new(Self { tokenizer, files }))
    }

    /// Restores the tokenizer of a checkpoint.
    ///
    /// # Errors
    /// The saved tokenizer is invalid.
    pub(crate) fn saved(kept: &Value) -> Result<Arc<Self>, String> {
        let files = serde_json::from_value(kept.clone()).map_err(|error| error.to_string())?;
        Self::of(files)
    }

    /// Serializes the tokenizer for a checkpoint.
    ///
    /// # Errors
    /// None in practice: the value consists of strings and numbers.
    pub(crate) fn kept(&self) -> serde_json::Result<Value> {
        serde_json::to_value(&self.files)
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub(crate) fn files(&self) -> &TokenizerFiles {
        &self.files
    }
}
