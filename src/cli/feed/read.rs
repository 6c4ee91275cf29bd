//! Text and token files, read before they are fitted to a model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::learned::Pace;
use super::model_fit::{self, What};
use super::{Source, Windows, parts};
use crate::model::Chosen;
use crate::vocabulary::ModelTokenizer;
use gpipe_data::{DataError, TextSet, Tokens};

/// Contents of a file, not yet fitted to a model.
pub(super) struct Read {
    /// `None` for tokens that are not characters.
    text: Option<TextSet>,
    tokens: Tokens,
    /// The held-out tokens, if the data defines them.
    held_out: Option<Tokens>,
    path: Option<PathBuf>,
    what: What,
}

impl Read {
    pub(super) fn text(set: TextSet, path: Option<PathBuf>) -> Self {
        Self {
            tokens: Tokens::of_text(&set),
            held_out: None,
            text: Some(set),
            path,
            what: What::Text,
        }
    }

    /// Reads a text file as characters, or as tokens if there is a tokenizer.
    pub(super) fn text_of(path: &Path, tokenizer: Option<&ModelTokenizer>) -> Result<Self, String> {
        let own = Some(path.to_owned());
        match tokenizer {
            None => {
                let set = TextSet::read(path).map_err(|error| error.to_string())?;
                Ok(Self::text(set, own))
            }
            Some(tokenizer) => {
                let text = TextSet::read_text(path).map_err(|error| error.to_string())?;
                Self::tokenized(&text, own, tokenizer)
            }
        }
    }

    pub(super) fn tokenized(
        text: &str,
        path: Option<PathBuf>,
        tokenizer: &ModelTokenizer,
    ) -> Result<Self, String> {
        let tokens = tokenizer.tokenizer().tokens(text);
        Ok(Self {
            tokens: tokens.map_err(|error| format!("the tokenizer refuses it: {error:#}"))?,
            text: None,
            held_out: None,
            path,
            what: What::Tokenized,
        })
    }

    pub(super) fn into_tokens(self) -> Tokens {
        self.tokens
    }

    pub(super) fn tokens(path: &Path, share: f64) -> Result<Self, DataError> {
        let (tokens, held_out) = match Tokens::of_folder(path)? {
            Some([tokens, held_out]) => (tokens, Some(held_out)),
            None => (Tokens::open(path)?, None),
        };
        for part in apart((&tokens, held_out.as_ref()), share) {
            part.check_ends()?;
        }
        Ok(Self {
            text: None,
            tokens,
            held_out,
            path: Some(path.to_owned()),
            what: What::Tokens,
        })
    }

    /// Returns the model and the data, with the data's vocabulary size unless it was given; or the
    /// model and the reason why they do not fit.
    pub(super) fn fitted(
        self,
        chosen: Chosen,
        share: f64,
    ) -> Result<(Chosen, Source), Box<(Chosen, String)>> {
        let vocabulary = self.tokens.vocabulary();
        let chosen = match model_fit::adapted(&chosen, vocabulary) {
            Ok(adapted) => adapted,
            Err(why) => return Err(Box::new((chosen, why))),
        };
        match self.cut(&chosen, share) {
            Ok(source) => Ok((chosen, source)),
            Err(why) => Err(Box::new((chosen, why))),
        }
    }

    fn cut(self, chosen: &Chosen, share: f64) -> Result<Source, String> {
        let what = self.what;
        let seq = model_fit::window(chosen, what, self.tokens.vocabulary())?;
        let own = self.held_out.as_ref();
        for tokens in std::iter::once(&self.tokens).chain(own) {
            let share = if own.is_some() { 0.0 } else { share };
            model_fit::require(tokens, what, seq, share)?;
        }
        let [train, held_out] = apart((&self.tokens, own), share);
        let held_out = (!held_out.is_empty()).then_some(held_out);
        let windows = Windows {
            train,
            held_out,
            seq,
            shuffle: true,
            pace: Pace::default(),
        };
        Ok(match (self.text, self.path) {
            (Some(set), path) => Source::Text {
                set: Arc::new(set),
                windows,
                path,
            },
            (None, path) => Source::Tokens { windows, path },
        })
    }
}

/// Splits off the held-out part: a file of its own, or a share.
fn apart((tokens, held_out): (&Tokens, Option<&Tokens>), share: f64) -> [Tokens; 2] {
    match held_out {
        Some(held_out) => [tokens.clone(), held_out.clone()],
        None => parts(tokens, share),
    }
}
