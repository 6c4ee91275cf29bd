//! Input data of a model: text, a file of tokens, samples of any kind, or data made up from its shapes.

mod batches;
mod eval_data;
pub(super) mod learned;
mod model_fit;
mod named_arrays;
pub(super) mod not_data;
mod read;
pub(super) mod remote;
pub(super) mod samples;
mod source_name;
mod speed;
mod suggested_model;
mod unlabelled;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use gpipe_partitioner::Micros;
use gpipe_partitioner::words::{count, meant};
use serde_json::Value;

use super::Failure;
use super::model::Chosen;
use super::vocabulary::ModelTokenizer;
use gpipe_data::{DataError, InputMeasures, MOBY_DICK, Part, Samples, TextSet, Tokens};
use gpipe_models::zoo::ModelSpec;
use gpipe_train::Feed as _;
use learned::{Learned, Pace};

pub(super) use batches::{Feed, HeldOut};
pub(super) use eval_data::EvalData;

use batches::Judged;
pub(super) use model_fit::{check_batch, tokens};
pub(super) use samples::DataOptions;
pub(super) use unlabelled::unlabelled;

use read::Read;

/// Word for made-up data in place of a path.
pub(super) const SYNTHETIC: &str = "synthetic";
/// Extension of token files.
const TOKENS: &str = "bin";

/// Source of batches.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one of a run")]
pub(super) enum Source {
    /// Windows of a text, drawn at random.
    Text {
        set: Arc<TextSet>,
        windows: Windows,
        /// `None` for the built-in text.
        path: Option<PathBuf>,
    },
    /// Windows of a token file or of a tokenized text, drawn at random.
    Tokens {
        windows: Windows,
        /// `None` for the built-in text.
        path: Option<PathBuf>,
    },
    /// Inputs and targets from a file or a folder, or the model's own.
    Samples {
        samples: Learned,
        /// `None` if they are the model's own.
        path: Option<PathBuf>,
        /// Pace of reading and decoding.
        pace: Pace,
    },
    /// Made-up data, with the reason if it was not requested.
    Synthetic(Option<String>),
}

/// Tokens and how they are cut into windows.
#[derive(Debug, Clone)]
pub(super) struct Windows {
    train: Tokens,
    /// `None` if nothing is held out.
    held_out: Option<Tokens>,
    /// Tokens per window.
    seq: usize,
    /// Whether windows are drawn at random rather than side by side.
    shuffle: bool,
    pace: Pace,
}

impl Source {
    /// Opens the data of `--data`, or the default data for the model; returns it with the model adapted
    /// to it, whose vocabulary size is the data's unless it was given. Text is tokenized if there is a
    /// tokenizer.
    pub(super) fn choose(
        chosen: Chosen,
        data: Option<&Path>,
        tokenizer: Option<&ModelTokenizer>,
        options: &DataOptions,
    ) -> Result<(Chosen, Self), Failure> {
        let here = data.map(remote::local).transpose();
        let here = here.map_err(|why| Failure::Usage(format!("--data: {why}")))?;
        let (chosen, mut source) = Self::named(chosen, here.as_deref(), tokenizer, options)?;
        if let Some(url) = data.filter(|path| remote::is_url(path)) {
            source.renamed(url);
        }
        if let Self::Text { windows, .. } | Self::Tokens { windows, .. } = &mut source {
            windows.pace = options.pace();
            windows.shuffle = options.shuffle;
        }
        Ok((chosen, source))
    }

    fn named(
        chosen: Chosen,
        data: Option<&Path>,
        tokenizer: Option<&ModelTokenizer>,
        options: &DataOptions,
    ) -> Result<(Chosen, Self), Failure> {
        if data == Some(Path::new("-")) {
            return Err(Failure::Usage(
                "--data -: data is read in random order, which standard input cannot be: copy it \
                 into a file"
                    .to_owned(),
            ));
        }
        if let Some(path) = data {
            let wrong = |why: String| Failure::Usage(format!("--data {}: {why}", path.display()));
            not_data::check_several(path).map_err(wrong)?;
            let typed = path.to_string_lossy();
            if !path.exists()
                && path != Path::new(SYNTHETIC)
                && meant(&typed, [SYNTHETIC]).is_some()
            {
                return Err(wrong(format!(
                    "there is no such file; did you mean `{SYNTHETIC}`?"
                )));
            }
        }
        if let Some(own) = Self::samples(&chosen, data, options)? {
            return Ok(own);
        }
        if let Some(path) = data.filter(|path| is_table(path) && path.exists()) {
            let name = chosen.spec.name();
            return Err(Failure::Usage(format!(
                "--data {}: this is a table, and `{name}` learns texts: {}; to learn it letter by letter, \
                 call it .txt",
                path.display(),
                suggested_model::of_table(path, options.target.as_deref())
            )));
        }
        let share = options.held_out;
        match data {
            Some(path) if path == Path::new(SYNTHETIC) => Ok((chosen, Self::Synthetic(None))),
            Some(path) => {
                let wrong = |why: String| Failure::Usage(format!("--data{why}"));
                let read = if is_tokens(path) {
                    Read::tokens(path, share).map_err(|error| error.to_string())
                } else {
                    Read::text_of(path, tokenizer)
                };
                let read = read.map_err(|error| wrong(format!(": {error}")))?;
                read.fitted(chosen, share).map_err(|unfit| {
                    let (chosen, why) = *unfit;
                    let instead = if is_table(path) {
                        suggested_model::instead(&chosen, path)
                    } else {
                        format!("; or take made-up data with --data {SYNTHETIC}")
                    };
                    wrong(format!(" {}: {why}{instead}", path.display()))
                })
            }
            None => {
                let read = match tokenizer {
                    None => Read::text(TextSet::new(MOBY_DICK), None),
                    Some(tokenizer) => {
                        Read::tokenized(MOBY_DICK, None, tokenizer).map_err(Failure::Usage)?
                    }
                };
                Ok(read.fitted(chosen, share).unwrap_or_else(|unfit| {
                    let (chosen, why) = *unfit;
                    (chosen, Self::Synthetic(Some(why)))
                }))
            }
        }
    }

    /// Replaces the downloaded copy's path with the URL.
    fn renamed(&mut self, url: &Path) {
        match self {
            Self::Text { path, .. } | Self::Tokens { path, .. } | Self::Samples { path, .. } => {
                *path = Some(url.to_owned());
            }
            Self::Synthetic(_) => {}
        }
    }

    /// Opens samples, if the path holds samples or the model has its own.
    fn samples(
        chosen: &Chosen,
        path: Option<&Path>,
        options: &DataOptions,
    ) -> Result<Option<(Chosen, Self)>, Failure> {
        if path.is_some_and(|path| path == Path::new(SYNTHETIC) || is_tokens(path)) {
            return Ok(None);
        }
        let named = |why: String| match path {
            // Some errors already name the file, or a file in it.
            Some(path) => Failure::Usage(match why.split_once(&path.display().to_string()) {
                Some(("" | "cannot read ", rest)) if rest.starts_with([':', ',', '/']) => {
                    format!("--data: {why}")
                }
                _ => format!("--data {}: {why}", path.display()),
            }),
            None => Failure::Usage(format!("the data of `{}`: {why}", chosen.spec.name())),
        };
        if let Some(path) = path
            && !is_samples(chosen, path).map_err(|error| named(error.to_string()))?
        {
            return Ok(None);
        }
        let found = samples::choose(chosen, path, options);
        let found = found.map_err(|why| match path {
            Some(path) => named(why + &suggested_model::instead(chosen, path)),
            None => named(why),
        })?;
        Ok(found.map(|(chosen, samples)| {
            let path = path.map(Path::to_owned);
            let pace = options.pace().or_workers(samples.workers());
            let samples = Self::Samples {
                samples,
                path,
                pace,
            };
            (chosen, samples)
        }))
    }

    /// Checks that a training batch is no larger than the data.
    pub(super) fn check_batch(&self, batch: usize) -> Result<(), String> {
        let Self::Samples { samples, .. } = self else {
            return Ok(());
        };
        match samples.train_len() {
            there if there >= batch => Ok(()),
            there => Err(format!(
                "--batch {batch} is more than the {} to train on: take a smaller batch",
                count(there, "sample")
            )),
        }
    }

    /// Samples per epoch; `None` for made-up data, which is endless. For text, the number of adjacent
    /// windows, although windows are drawn at random.
    pub(super) fn epoch(&self) -> Option<usize> {
        match self {
            Self::Text { windows, .. } | Self::Tokens { windows, .. } => {
                Some((windows.train.len().saturating_sub(1) / windows.seq.max(1)).max(1))
            }
            Self::Samples { samples, .. } => Some(samples.train_len()),
            Self::Synthetic(_) => None,
        }
    }

    /// The description of the samples that a run saves.
    pub(super) fn kept(&self) -> Option<Value> {
        match self {
            Self::Samples { samples, .. } => Some(samples.kept()),
            _ => None,
        }
    }

    /// Returns the text and the window length, if the data is text.
    pub(super) fn text(&self) -> Option<(&TextSet, usize)> {
        match self {
            Self::Text { set, windows, .. } => Some((set, windows.seq)),
            Self::Tokens { .. } | Self::Samples { .. } | Self::Synthetic(_) => None,
        }
    }

    /// Returns the next `batches` batches of `samples` samples, prefetched where they must be loaded.
    /// `from` is the saved position of another feed of the same data and seed.
    ///
    /// # Errors
    /// The state is invalid or of other data, or libtorch or the operating system fails.
    pub(super) fn feed(
        &self,
        spec: &ModelSpec,
        samples: usize,
        batches: usize,
        seed: u64,
        from: Option<&Value>,
    ) -> anyhow::Result<Feed> {
        match self {
            Self::Text { windows, .. } | Self::Tokens { windows, .. } => {
                Feed::windows(spec, windows, (samples, batches), seed, from)
            }
            Self::Samples {
                samples: all, pace, ..
            } => Feed::samples(spec, all, (samples, *pace), batches, from),
            Self::Synthetic(_) => Feed::made(spec, samples, batches, seed, from),
        }
    }

    /// Returns the held-out data in batches, for one pass; `None` for made-up data, and if none is
    /// requested: see [`HeldOut::new`].
    pub(super) fn held_out(
        &self,
        samples: usize,
        most: Option<usize>,
        takes: impl Fn(usize) -> bool,
    ) -> Option<HeldOut<'_>> {
        if most == Some(0) {
            return None;
        }
        let from = match self {
            Self::Text { windows, .. } | Self::Tokens { windows, .. } => {
                Judged::Windows(windows.held_out.as_ref()?, windows.seq)
            }
            Self::Samples { samples, pace, .. } if samples.held_out_len() > 0 => {
                Judged::Samples(samples, Part::HeldOut, *pace)
            }
            Self::Samples { .. } | Self::Synthetic(_) => return None,
        };
        Some(HeldOut::new(from, samples, most, takes))
    }

    /// Returns the first held-out tokens, as a prompt, and the sequence length; `None` for data without
    /// tokens.
    ///
    /// # Errors
    /// The tokens cannot be read.
    pub(super) fn beginning(&self) -> Result<Option<(Vec<i64>, usize)>, DataError> {
        let Some(windows) = self.windows() else {
            return Ok(None);
        };
        let tokens = windows.held_out.as_ref().unwrap_or(&windows.train);
        let some = (windows.seq / 4).max(1).min(tokens.len());
        Ok(Some((tokens.get(0..some)?, windows.seq)))
    }

    fn windows(&self) -> Option<&Windows> {
        match self {
            Self::Text { windows, .. } | Self::Tokens { windows, .. } => Some(windows),
            Self::Samples { .. } | Self::Synthetic(_) => None,
        }
    }

    /// Measures the time per batch of a warm loader without other load.
    ///
    /// # Errors
    /// As [`Source::feed`].
    pub(super) fn measure(&self, spec: &ModelSpec, samples: usize) -> anyhow::Result<Measured> {
        let mut feed = self.feed(spec, samples, speed::BATCHES, 0, None)?;
        let start = Instant::now();
        let each = speed::each(feed.by_ref(), || start.elapsed().as_secs_f64())?;
        Ok(Measured {
            each,
            phases: feed.measures(),
        })
    }
}

/// A loader's time per batch without other load.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) each: Micros,
    /// Time of each loading phase; `None` for made-up data.
    pub(super) phases: Option<InputMeasures>,
}

/// Splits tokens into a training part and the held-out share at the end.
pub(super) fn parts(tokens: &Tokens, share: f64) -> [Tokens; 2] {
    let held_out = (tokens.len() as f64 * share) as usize;
    let train = tokens.len() - held_out;
    [tokens.range(0..train), tokens.range(train..tokens.len())]
}

/// Whether a path names a token file, or a folder of two as nanoGPT's scripts write.
pub(crate) fn is_tokens(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == TOKENS) || Tokens::are_in(path)
}

/// Whether a path names a table, which may also be read as text.
fn is_table(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default();
    let tables = ["csv", "tsv"];
    tables.iter().any(|own| ending.eq_ignore_ascii_case(own))
}

/// Whether a path names samples for this model; a language model reads a table as text.
fn is_samples(chosen: &Chosen, path: &Path) -> Result<bool, DataError> {
    if is_table(path) && tokens(&chosen.spec).is_some() {
        return Ok(false);
    }
    Samples::known(path)
}
