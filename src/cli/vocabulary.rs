//! Vocabularies of models.

mod characters;
mod tokenizer;

use std::sync::Arc;

use gpipe_data::TextStream;
use gpipe_models::hugging_face::TokenizerFiles;

pub(crate) use characters::Characters;
pub(crate) use tokenizer::ModelTokenizer;

/// The meaning of a model's tokens.
#[derive(Debug, Clone)]
pub(crate) enum Vocabulary {
    /// Each token is a character.
    Characters(Characters),
    /// Tokens of a `tokenizer.json`.
    Tokenizer(Arc<ModelTokenizer>),
}

/// Incremental decoder of tokens.
pub(crate) enum Reader<'a> {
    Characters(&'a Characters),
    Tokenizer(TextStream<'a>),
}

impl Vocabulary {
    /// Makes a vocabulary of these characters, in order.
    pub(crate) fn of_characters(characters: &[char]) -> Self {
        Self::Characters(Characters::new(characters.to_vec()))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Characters(own) => own.len(),
            Self::Tokenizer(own) => own.tokenizer().vocabulary(),
        }
    }

    /// Name of a token.
    pub(crate) fn unit(&self) -> &'static str {
        match self {
            Self::Characters(_) => "character",
            Self::Tokenizer(_) => "token",
        }
    }

    /// Encodes a text.
    ///
    /// # Errors
    /// A part of the text has no token.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<i64>, String> {
        match self {
            Self::Characters(own) => own.encode(text),
            Self::Tokenizer(own) => numbers(own.tokenizer().encode(text)),
        }
    }

    /// Encodes a prompt, with the tokens that mark the beginning of a text.
    ///
    /// # Errors
    /// As [`Vocabulary::encode`].
    pub(crate) fn encode_prompt(&self, text: &str) -> Result<Vec<i64>, String> {
        match self {
            Self::Characters(own) => own.encode(text),
            Self::Tokenizer(own) => numbers(own.tokenizer().encode_prompt(text)),
        }
    }

    /// Returns the end-of-text tokens.
    pub(crate) fn ends(&self) -> Vec<i64> {
        match self {
            Self::Characters(_) => Vec::new(),
            Self::Tokenizer(own) => own.files().ends(),
        }
    }

    /// Returns a decoder of the text after these tokens.
    pub(crate) fn reader(&self, before: &[i64]) -> Reader<'_> {
        match self {
            Self::Characters(own) => Reader::Characters(own),
            Self::Tokenizer(own) => {
                let before: Vec<u32> = before.iter().map(|&token| token as u32).collect();
                Reader::Tokenizer(TextStream::new(own.tokenizer(), &before))
            }
        }
    }

    /// Returns the tokenizer files for `export`.
    pub(crate) fn files(&self) -> TokenizerFiles {
        match self {
            Self::Characters(own) => TokenizerFiles::of_characters(own.all()),
            Self::Tokenizer(own) => own.files().clone(),
        }
    }
}

fn numbers(tokens: anyhow::Result<Vec<u32>>) -> Result<Vec<i64>, String> {
    let tokens = tokens.map_err(|error| format!("{error:#}"))?;
    Ok(tokens.into_iter().map(i64::from).collect())
}

impl Reader<'_> {
    /// Returns the text that another token completes.
    pub(crate) fn push(&mut self, token: i64) -> anyhow::Result<String> {
        match self {
            Self::Characters(own) => Ok(own.decode(token).to_string()),
            Self::Tokenizer(own) => own.push(token as u32),
        }
    }

    /// Returns the remaining text at the end.
    pub(crate) fn rest(&mut self) -> anyhow::Result<String> {
        match self {
            Self::Characters(_) => Ok(String::new()),
            Self::Tokenizer(own) => own.rest(),
        }
    }
}
