//! Texts as the tokens of a Hugging Face `tokenizer.json`.

use std::fmt;
use std::path::Path;

use super::{DataError, Tokens};

/// A tokenizer of a `tokenizer.json`: byte-pair encoding, WordPiece and the like.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// The file cannot be read or is none.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let bytes = crate::files::read(path).map_err(|source| DataError::read(path, source))?;
        let inner = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|error| DataError::bad(path, 0, format!("this is no tokenizer: {error}")))?;
        Ok(Self { inner })
    }

    /// All tokens are below this.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The tokens of a text, without those that mark its beginning or end.
    ///
    /// # Errors
    /// The tokenizer refuses.
    pub fn encode(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false);
        let encoding = encoding.map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens.
    ///
    /// # Errors
    /// The tokenizer refuses.
    pub fn decode(&self, tokens: &[u32]) -> anyhow::Result<String> {
        let text = self.inner.decode(tokens, true);
        text.map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// The tokens of a text, to train on.
    ///
    /// # Errors
    /// The tokenizer refuses.
    pub fn tokens(&self, text: &str) -> anyhow::Result<Tokens> {
        let tokens = self.encode(text)?;
        Ok(Tokens::with_vocabulary(tokens, self.vocabulary())?)
    }
}
