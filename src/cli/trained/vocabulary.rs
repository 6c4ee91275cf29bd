//! What tokens stand for.

mod characters;
mod tokenizer;

use std::sync::Arc;

use gpipe_data::TextStream;
use gpipe_models::hugging_face::TokenizerFiles;

pub(crate) use characters::Characters;
pub(crate) use tokenizer::ModelTokenizer;

/// What a model's tokens stand for.
#[derive(Debug, Clone)]
pub(crate) enum Vocabulary {
    /// A character each.
    Characters(Characters),
    /// What a `tokenizer.json` says.
    Tokenizer(Arc<ModelTokenizer>),
}

/// The text of tokens, as they come.
pub(crate) enum Reader<'a> {
    Characters(&'a Characters),
    Tokenizer(TextStream<'a>),
}

impl Vocabulary {
    /// A character each, in this order.
    pub(crate) fn of_characters(characters: &[char]) -> Self {
        Self::Characters(Characters::new(characters.to_vec()))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Characters(own) => own.len(),
            Self::Tokenizer(own) => own.tokenizer().vocabulary(),
        }
    }

    /// What a token is.
    pub(crate) fn unit(&self) -> &'static str {
        match self {
            Self::Characters(_) => "character",
            Self::Tokenizer(_) => "token",
        }
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// Some of it has none: what.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<i64>, String> {
        match self {
            Self::Characters(own) => own.encode(text),
            Self::Tokenizer(own) => numbers(own.tokenizer().encode(text)),
        }
    }

    /// The tokens of a text that is to be gone on with, with those that mark its beginning.
    ///
    /// # Errors
    /// As [`Vocabulary::encode`].
    pub(crate) fn encode_prompt(&self, text: &str) -> Result<Vec<i64>, String> {
        match self {
            Self::Characters(own) => own.encode(text),
            Self::Tokenizer(own) => numbers(own.tokenizer().encode_prompt(text)),
        }
    }

    /// Tokens that end a text.
    pub(crate) fn ends(&self) -> Vec<i64> {
        match self {
            Self::Characters(_) => Vec::new(),
            Self::Tokenizer(own) => own.files().ends(),
        }
    }

    /// The text of what comes behind these tokens.
    pub(crate) fn reader(&self, before: &[i64]) -> Reader<'_> {
        match self {
            Self::Characters(own) => Reader::Characters(own),
            Self::Tokenizer(own) => {
                let before: Vec<u32> = before.iter().map(|&token| token as u32).collect();
                Reader::Tokenizer(TextStream::new(own.tokenizer(), &before))
            }
        }
    }

    /// What `export` writes beside the weights.
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
    /// What another token makes certain of the text.
    pub(crate) fn push(&mut self, token: i64) -> anyhow::Result<String> {
        match self {
            Self::Characters(own) => Ok(own.decode(token).to_string()),
            Self::Tokenizer(own) => own.push(token as u32),
        }
    }

    /// What is left at the end.
    pub(crate) fn rest(&mut self) -> anyhow::Result<String> {
        match self {
            Self::Characters(_) => Ok(String::new()),
            Self::Tokenizer(own) => own.rest(),
        }
    }
}
