//! Texts as the tokens of a Hugging Face `tokenizer.json`.

use std::fmt;
use std::path::Path;

use tokenizers::models::ModelWrapper;

use super::{DataError, Tokens};

/// A tokenizer of a `tokenizer.json`: byte-pair encoding, WordPiece and the like.
///
/// The tokens of a text depend on the text alone: the file's `truncation` and `padding`, which are for
/// batches of texts, and the `dropout` of its merges, which is random, are not heeded.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// One more than its largest token.
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
    /// The file cannot be read or is none.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let bytes =
            gpipe_partitioner::files::read(path).map_err(|source| DataError::read(path, source))?;
        Self::parse(&bytes)
            .map_err(|error| DataError::bad(path, 0, format!("this is no tokenizer: {error}")))
    }

    /// The tokenizer of a `tokenizer.json` that was read.
    ///
    /// # Errors
    /// It is none.
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
        // Tokens need not be dense: as many as there are may be fewer.
        let largest = inner.get_vocab(true).into_values().max();
        Ok(Self {
            inner,
            vocabulary: largest.map_or(0, |largest| largest as usize + 1),
        })
    }

    /// All tokens are below this.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The tokens of a text, without those that mark its beginning or end.
    ///
    /// # Errors
    /// The tokenizer refuses.
    pub fn encode(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        self.encoded(text, false)
    }

    /// The tokens of a text that a model is to go on with: with those that mark its beginning,
    /// where the tokenizer has such.
    ///
    /// # Errors
    /// The tokenizer refuses.
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

    /// The text of tokens, without those that mark something.
    ///
    /// # Errors
    /// The tokenizer refuses.
    pub fn decode(&self, tokens: &[u32]) -> anyhow::Result<String> {
        self.inner
            .decode(tokens, true)
            .map_err(|error| anyhow::anyhow!("{error}"))
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

/// The text of tokens that come one after the other, behind others.
///
/// A character may be made of several tokens: it is there with the last of them.
#[derive(Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// The last tokens: some whose text is out, for blanks between words depend on them, and
    /// those of which nothing is out yet.
    tokens: Vec<u32>,
    /// Tokens whose text is out.
    out: usize,
}

impl<'t> TextStream<'t> {
    /// The text of what comes behind these tokens.
    pub fn new(tokenizer: &'t Tokenizer, before: &[u32]) -> Self {
        Self {
            tokenizer,
            tokens: before.to_vec(),
            out: before.len(),
        }
    }

    /// What another token makes certain of the text: nothing, where a character is not whole.
    ///
    /// # Errors
    /// The tokenizer refuses.
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

    /// What is left at the end: bytes that are no character, as replacement characters.
    ///
    /// # Errors
    /// The tokenizer refuses.
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
