//! What a model is fed with: a text, a file of tokens, or data made up from its shapes.

mod batches;
mod fit;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::Micros;
use serde_json::Value;

use super::Failure;
use super::model::Chosen;
use super::trained::ModelTokenizer;
use crate::data::{DataError, MOBY_DICK, Split, TextSet, Tokens};
use crate::models::zoo::ModelSpec;

pub(super) use batches::{Feed, HeldOut};
pub(super) use fit::{check_batch, tokens};

use fit::What;

/// What stands for made-up data where a file could stand.
const SYNTHETIC: &str = "synthetic";
/// What the name of a file of tokens ends with.
const TOKENS: &str = "bin";
/// A loader is measured over this many batches, or for this long.
const MEASURED: usize = 64;
const MEASURED_SECONDS: f64 = 1.0;

/// Where batches come from.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// Windows of a text, drawn at random.
    Text {
        set: Arc<TextSet>,
        windows: Windows,
        /// None: the built-in text.
        path: Option<PathBuf>,
    },
    /// Windows of a file of tokens, or of a text as those of a tokenizer, drawn at random.
    Tokens {
        windows: Windows,
        /// None: the built-in text.
        path: Option<PathBuf>,
    },
    /// Made once, with why where nobody asked for it.
    Synthetic(Option<String>),
}

/// Tokens and how they are cut.
#[derive(Debug, Clone)]
pub(super) struct Windows {
    train: Tokens,
    held_out: Tokens,
    /// Tokens of a window.
    seq: usize,
}

impl Source {
    /// The data that `--data` names, or what fits the model where it names none; and
    /// the model for it, whose vocabulary is the data's where nobody chose one. Texts are read as
    /// the tokens of the tokenizer, where there is one.
    pub(super) fn choose(
        chosen: Chosen,
        data: Option<&Path>,
        tokenizer: Option<&ModelTokenizer>,
    ) -> Result<(Chosen, Self), Failure> {
        match data {
            Some(path) if path == Path::new(SYNTHETIC) => Ok((chosen, Self::Synthetic(None))),
            Some(path) => {
                let wrong = |why: String| Failure::Usage(format!("--data{why}"));
                let read = if path.extension().is_some_and(|end| end == TOKENS) {
                    Read::tokens(path).map_err(|error| error.to_string())
                } else {
                    Read::text_of(path, tokenizer)
                };
                let read = read.map_err(|error| wrong(format!(": {error}")))?;
                read.fitted(chosen).map_err(|unfit| {
                    wrong(format!(
                        " {}: {}; or take made-up data with --data {SYNTHETIC}",
                        path.display(),
                        unfit.1
                    ))
                })
            }
            None => {
                let read = match tokenizer {
                    None => Read::text(TextSet::new(MOBY_DICK), None),
                    Some(tokenizer) => {
                        Read::tokenized(MOBY_DICK, None, tokenizer).map_err(Failure::Usage)?
                    }
                };
                Ok(read.fitted(chosen).unwrap_or_else(|unfit| {
                    let (chosen, why) = *unfit;
                    (chosen, Self::Synthetic(Some(why)))
                }))
            }
        }
    }

    /// The text, where it is one.
    pub(super) fn text(&self) -> Option<(&TextSet, usize)> {
        match self {
            Self::Text { set, windows, .. } => Some((set, windows.seq)),
            Self::Tokens { .. } | Self::Synthetic(_) => None,
        }
    }

    /// What it is called.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Text { path: None, .. } | Self::Tokens { path: None, .. } => {
                "built-in: moby-dick".to_owned()
            }
            Self::Text {
                path: Some(path), ..
            }
            | Self::Tokens {
                path: Some(path), ..
            } => path.display().to_string(),
            Self::Synthetic(_) => SYNTHETIC.to_owned(),
        }
    }

    /// The next `batches` batches of `samples`, made ahead of their use where making
    /// them takes anything; `from` where another feed of the same data and seed stood.
    ///
    /// # Errors
    /// The state is none, or of other data; libtorch or the operating system refuses.
    pub(super) fn feed(
        &self,
        spec: &ModelSpec,
        samples: usize,
        batches: usize,
        seed: u64,
        from: Option<&Value>,
    ) -> anyhow::Result<Feed> {
        match self.windows() {
            Some(windows) => Feed::windows(windows, samples, batches, seed, from),
            None => Feed::made(spec, samples, batches, seed, from),
        }
    }

    /// What is held out, once, in batches, of which there are `most` at most; None for made-up
    /// data, and where none is asked for.
    pub(super) fn held_out(&self, samples: usize, most: Option<usize>) -> Option<HeldOut<'_>> {
        let windows = self.windows().filter(|_| most != Some(0))?;
        Some(HeldOut {
            windows,
            samples,
            most,
        })
    }

    /// The first tokens that are held out, some for a model to go on with, and the tokens of a
    /// sequence; none of made-up data.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn beginning(&self) -> Result<Option<(Vec<i64>, usize)>, DataError> {
        let Some(windows) = self.windows() else {
            return Ok(None);
        };
        let some = (windows.seq / 4).max(1).min(windows.held_out.len());
        Ok(Some((windows.held_out.get(0..some)?, windows.seq)))
    }

    fn windows(&self) -> Option<&Windows> {
        match self {
            Self::Text { windows, .. } | Self::Tokens { windows, .. } => Some(windows),
            Self::Synthetic(_) => None,
        }
    }

    /// How long a batch takes to come when nothing else waits: how fast the loader is.
    ///
    /// # Errors
    /// As [`Source::feed`].
    pub(super) fn measure(&self, spec: &ModelSpec, samples: usize) -> anyhow::Result<Micros> {
        let mut feed = self.feed(spec, samples, MEASURED + 1, 0, None)?;
        // The thread has to start for the first one.
        feed.next().transpose()?;
        let start = Instant::now();
        let mut batches = 0;
        for batch in feed {
            batch?;
            batches += 1;
            if start.elapsed().as_secs_f64() > MEASURED_SECONDS {
                break;
            }
        }
        let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(batches.max(1));
        Ok(Micros::new(each)?)
    }
}

/// What a file holds, before it is known whether the model can take it.
struct Read {
    /// None: tokens that are no characters that we know.
    text: Option<TextSet>,
    tokens: Tokens,
    path: Option<PathBuf>,
    what: What,
}

impl Read {
    fn text(set: TextSet, path: Option<PathBuf>) -> Self {
        Self {
            tokens: Tokens::of_text(&set),
            text: Some(set),
            path,
            what: What::Text,
        }
    }

    /// A file of text, as characters or as the tokens of a tokenizer.
    fn text_of(path: &Path, tokenizer: Option<&ModelTokenizer>) -> Result<Self, String> {
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

    fn tokenized(
        text: &str,
        path: Option<PathBuf>,
        tokenizer: &ModelTokenizer,
    ) -> Result<Self, String> {
        let tokens = tokenizer.tokenizer().tokens(text);
        Ok(Self {
            tokens: tokens.map_err(|error| format!("the tokenizer refuses it: {error:#}"))?,
            text: None,
            path,
            what: What::Tokenized,
        })
    }

    fn tokens(path: &Path) -> Result<Self, DataError> {
        let tokens = Tokens::open(path)?;
        for part in [Split::Train, Split::HeldOut] {
            tokens.split(part).check_ends()?;
        }
        Ok(Self {
            text: None,
            tokens,
            path: Some(path.to_owned()),
            what: What::Tokens,
        })
    }

    /// The model, with the data's vocabulary where nobody chose one, and the data; or the
    /// model and why they do not fit.
    fn fitted(self, chosen: Chosen) -> Result<(Chosen, Source), Box<(Chosen, String)>> {
        let vocabulary = self.tokens.vocabulary();
        let chosen = match fit::adapted(&chosen, vocabulary) {
            Ok(adapted) => adapted,
            Err(why) => return Err(Box::new((chosen, why))),
        };
        match self.cut(&chosen) {
            Ok(source) => Ok((chosen, source)),
            Err(why) => Err(Box::new((chosen, why))),
        }
    }

    fn cut(self, chosen: &Chosen) -> Result<Source, String> {
        let what = self.what;
        let seq = fit::window(chosen, what, self.tokens.vocabulary())?;
        fit::require(&self.tokens, what, seq)?;
        let windows = Windows {
            train: self.tokens.split(Split::Train),
            held_out: self.tokens.split(Split::HeldOut),
            seq,
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
