//! Tokenizers of Hugging Face's `tokenizer.json`.

use std::fmt;
use std::path::Path;

use tokenizers::models::ModelWrapper;

use super::{DataError, Tokens};

/// A tokenizer from a `tokenizer.json`: byte-pair encoding, WordPiece and others.
///
/// The tokens of a text depend only on the text: the file's `truncation` and `padding`, which are for
/// batches of texts, and the `dropout` of its merges, which is random, are ignored.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// One more than the largest token.
    vocabulary: usize,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// The file cannot be read, or is not a tokenizer.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let bytes =
            gpipe_partitioner::files::read(path).map_err(|source| DataError::read(path, source))?;
        Self::parse(&bytes)
            .map_err(|error| DataError::bad(path, 0, format!("this is no tokenizer: {error}")))
    }

    /// Parses the contents of a `tokenizer.json`.
    ///
    /// # Errors
    /// They are not a tokenizer.
    pub fn parse(json: &[u8]) -> anyhow::Result<Self> {
        let wrong = |error: tokenizers::Error| anyhow::anyhow!("{error}");
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(wrong)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(wrong)?;
        if let ModelWrapper::BPE(own) = inner.get_model()
            && own.dropout.is_some()
        {
            let mut own = own.clone();
            own.dropout = None;
            inner.with_model(own);
        }
        // Token numbers may have gaps, so the largest counts.
        let largest = inner.get_vocab(true).into_values().max();
        Ok(Self {
            inner,
            vocabulary: largest.map_or(0, |largest| largest as usize + 1),
        })
    }

    /// Returns the vocabulary size: all tokens are below it.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Encodes a text, without special tokens at its beginning or end.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        self.encoded(text, false)
    }

    /// Encodes a prompt, with the special tokens at its beginning, if the tokenizer has any.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode_prompt(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        self.encoded(text, true)
    }

    fn encoded(&self, text: &str, marked: bool) -> anyhow::Result<Vec<u32>> {
        let encoding = self
            .inner
            .encode_fast(text, marked)
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Decodes tokens, without special tokens.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn decode(&self, tokens: &[u32]) -> anyhow::Result<String> {
        self.inner
            .decode(tokens, true)
            .map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// Encodes a text as training data.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn tokens(&self, text: &str) -> anyhow::Result<Tokens> {
        let tokens = self.encode(text)?;
        Ok(Tokens::with_vocabulary(tokens, self.vocabulary())?)
    }
}

/// Incremental decoder of tokens that follow others.
///
/// A character may consist of several tokens: it appears with the last of them.
#[derive(Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// The last tokens: some that were already decoded, as spaces between words depend on them, and
    /// those not decoded yet.
    tokens: Vec<u32>,
    /// Number of tokens already decoded.
    out: usize,
}

impl<'t> TextStream<'t> {
    /// Makes a decoder of the text after these tokens.
    pub fn new(tokenizer: &'t Tokenizer, before: &[u32]) -> Self {
        Self {
            tokenizer,
            tokens: before.to_vec(),
            out: before.len(),
        }
    }

    /// Returns the text that another token completes; empty while a character is incomplete.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn push(&mut self, token: u32) -> anyhow::Result<String> {
        self.tokens.push(token);
        let text = self.more()?;
        if text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.tokens.drain(..self.out);
        self.out = self.tokens.len();
        Ok(text)
    }

    /// Returns the rest of the text at the end: incomplete characters become replacement characters.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn rest(&mut self) -> anyhow::Result<String> {
        let text = self.more()?;
        self.tokens.clear();
        self.out = 0;
        Ok(text)
    }

    fn more(&self) -> anyhow::Result<String> {
        let before = self.tokenizer.decode(&self.tokens[..self.out])?;
        let all = self.tokenizer.decode(&self.tokens)?;
        Ok(all.strip_prefix(&before).unwrap_or_default().to_owned())
    }
}
