//! Evaluation data of language models: tokens, cut into windows.

use std::path::Path;

use tch::Tensor;

use crate::feed::remote::local;
use crate::feed::{is_tokens, parts};
use crate::trained::{Trained, TrainedOn};
use crate::vocabulary::Vocabulary;
use crate::{Failure, input};
use gpipe_data::{DataError, MOBY_DICK, TextSet, Tokens};

/// Tokens held out from training.
pub(super) struct Judge {
    tokens: Tokens,
    /// Name of the data.
    pub(super) name: String,
    /// `character` or `token`.
    pub(super) unit: &'static str,
    /// Whether every token counts, including a last incomplete window.
    pub(super) whole: bool,
}

impl Judge {
    /// Selects the whole named file, or the tokens held out from training.
    pub(super) fn choose(trained: &Trained, data: Option<&Path>) -> Result<Self, Failure> {
        let judge = match data {
            Some(path) => Self::named(trained, path)
                .map_err(|why| Failure::Usage(format!("--data {}: {why}", path.display())))?,
            None => Self::held_out(trained).map_err(|why| {
                Failure::Usage(format!("{why}; name other data with --data FILE"))
            })?,
        };
        Ok(judge)
    }

    fn named(trained: &Trained, path: &Path) -> Result<Self, String> {
        if path.is_dir() {
            return Err(
                "this is a folder: this model is judged by one text (UTF-8) or one file of tokens (.bin)"
                    .to_owned(),
            );
        }
        let name = path.display().to_string();
        let judge = if is_tokens(path) {
            Self::of_tokens(trained, path)?
        } else {
            let vocabulary = trained.vocabulary()?;
            Self {
                tokens: of_numbers(vocabulary.encode(&read(path)?)?),
                name,
                unit: vocabulary.unit(),
                whole: true,
            }
        };
        match judge.tokens.len() {
            0 | 1 => Err(format!(
                "it is too short: there must be a {unit}, and one after it",
                unit = judge.unit
            )),
            _ => Ok(judge),
        }
    }

    fn of_tokens(trained: &Trained, path: &Path) -> Result<Self, String> {
        let place = local(path)?;
        // If the folder has a held-out part, use it.
        let parts = Tokens::of_folder(&place).map_err(|error| error.to_string())?;
        let tokens = match parts {
            Some([_, held_out]) => held_out,
            None => Tokens::open(&place).map_err(|error| error.to_string())?,
        };
        let (_, known) = trained.tokens()?;
        if tokens.vocabulary() > known {
            return Err(format!(
                "its tokens go up to {}, but the model knows {known}",
                tokens.vocabulary() - 1
            ));
        }
        Ok(Self {
            tokens,
            name: path.display().to_string(),
            unit: "token",
            whole: true,
        })
    }

    /// Returns the run's held-out tokens.
    fn held_out(trained: &Trained) -> Result<Self, String> {
        let (text, name) = match &trained.settings.data {
            TrainedOn::BuiltIn => (MOBY_DICK.to_owned(), "built-in: moby-dick".to_owned()),
            TrainedOn::File(path) if is_tokens(path) => {
                let all = Self::of_tokens(trained, path);
                let all = all.map_err(|why| format!("{}: {why}", path.display()))?;
                let tokens = if Tokens::are_in(path) {
                    all.tokens
                } else {
                    held_out(trained, &all.tokens)
                };
                return Ok(Self {
                    tokens,
                    whole: false,
                    ..all
                });
            }
            TrainedOn::File(path) => {
                let name = path.display().to_string();
                (read(path).map_err(|why| format!("{name}: {why}"))?, name)
            }
            TrainedOn::Synthetic => {
                return Err("it was trained on made-up data, of which none is held out".to_owned());
            }
            TrainedOn::Unknown => return Err("nothing says what it was trained on".to_owned()),
        };
        let vocabulary = trained.vocabulary()?;
        let tokens = match vocabulary {
            Vocabulary::Characters(own) => {
                let set = TextSet::new(&text);
                // The file may have changed since, and its token numbers with it.
                if own.all() != set.vocabulary() {
                    return Err(format!(
                        "{name} is another text than the one that was trained on"
                    ));
                }
                Tokens::of_text(&set)
            }
            Vocabulary::Tokenizer(_) => of_numbers(vocabulary.encode(&text)?),
        };
        Ok(Self {
            tokens: held_out(trained, &tokens),
            name,
            unit: vocabulary.unit(),
            whole: false,
        })
    }

    /// Returns windows of `context` tokens with their next tokens, in batches of equal length.
    pub(super) fn windows(
        &self,
        context: usize,
        batch: usize,
    ) -> impl Iterator<Item = Result<(Tensor, Tensor), DataError>> {
        let last = self.tokens.len().saturating_sub(1);
        let full = last / context;
        let batches = (0..full).step_by(batch);
        let batches = batches.map(move |first| {
            let rows = batch.min(full - first);
            (first * context, rows, context)
        });
        let rest = last - full * context;
        let rest = (self.whole && rest > 0).then_some((full * context, 1, rest));
        let windows = batches.chain(rest);
        windows.map(|(begin, rows, length)| self.cut(begin, rows, length))
    }

    /// Cuts consecutive windows.
    fn cut(&self, begin: usize, rows: usize, length: usize) -> Result<(Tensor, Tensor), DataError> {
        let part = |begin: usize| -> Result<Tensor, DataError> {
            let tokens = self.tokens.get(begin..begin + rows * length)?;
            Ok(Tensor::from_slice(&tokens).view([rows as i64, length as i64]))
        };
        Ok((part(begin)?, part(begin + 1)?))
    }
}

/// Returns the tokens held out from training.
fn held_out(trained: &Trained, tokens: &Tokens) -> Tokens {
    let [_, held_out] = parts(tokens, trained.settings.options.held_out);
    held_out
}

/// Reads a text file; the error does not name the file.
fn read(path: &Path) -> Result<String, String> {
    let path = &*local(path)?;
    input::text(path).map_err(|failure| {
        let why = failure.said();
        let own = why.strip_prefix(&format!("{}: ", path.display()));
        own.unwrap_or(&why).to_owned()
    })
}

fn of_numbers(tokens: Vec<i64>) -> Tokens {
    Tokens::new(tokens.into_iter().map(|token| token as u32).collect())
}
