//! What a model is fed with: a text, or data made up from its shapes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gpipe_partitioner::Micros;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Failure;
use super::model::Chosen;
use super::model::flags::flag;
use super::models::shapes;
use crate::Values;
use crate::data::{MOBY_DICK, Prefetch, Sampler, Split, TextError, TextSet, Windows};
use crate::models::zoo::{Fill, ModelSpec, Synthetic};

/// What stands for made-up data where a file could stand.
const SYNTHETIC: &str = "synthetic";
/// The most values of a mini-batch's inputs and targets: tens of gigabytes are a slip.
const MAX_VALUES: i64 = 1 << 32;
/// Batches made ahead of their use.
const AHEAD: usize = 2;
/// A loader is measured over this many batches, or for this long.
const MEASURED: usize = 64;
const MEASURED_SECONDS: f64 = 1.0;

/// Where batches come from.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// Windows of a text, drawn at random.
    Text {
        set: Arc<TextSet>,
        /// Tokens of a window.
        seq: usize,
        /// None: the built-in text.
        path: Option<PathBuf>,
    },
    /// Made once, with why where nobody asked for it.
    Synthetic(Option<String>),
}

impl Source {
    /// The data that `--data` names, or what fits the model where it names none; and
    /// the model for it, whose vocabulary is the text's where nobody chose one.
    pub(super) fn choose(chosen: Chosen, data: Option<&Path>) -> Result<(Chosen, Self), Failure> {
        match data {
            Some(path) if path == Path::new(SYNTHETIC) => Ok((chosen, Self::Synthetic(None))),
            Some(path) => {
                let wrong = |why: String| Failure::Usage(format!("--data{why}"));
                let set = TextSet::read(path).map_err(|error| wrong(format!(": {error}")))?;
                fitted(chosen, set, Some(path.to_owned())).map_err(|unfit| {
                    wrong(format!(
                        " {}: {}; or take made-up data with --data {SYNTHETIC}",
                        path.display(),
                        unfit.1
                    ))
                })
            }
            None => Ok(
                fitted(chosen, TextSet::new(MOBY_DICK), None).unwrap_or_else(|unfit| {
                    let (chosen, why) = *unfit;
                    (chosen, Self::Synthetic(Some(why)))
                }),
            ),
        }
    }

    /// The text, where it is one.
    pub(super) fn text(&self) -> Option<(&TextSet, usize)> {
        match self {
            Self::Text { set, seq, .. } => Some((set, *seq)),
            Self::Synthetic(_) => None,
        }
    }

    /// What it is called.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Text { path: None, .. } => "built-in: moby-dick".to_owned(),
            Self::Text {
                path: Some(path), ..
            } => path.display().to_string(),
            Self::Synthetic(_) => SYNTHETIC.to_owned(),
        }
    }

    /// The next `batches` batches of `samples`, made ahead of their use where making
    /// them takes anything; `from` where another feed of the same data stood.
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
        let start = State {
            data: self.identity(),
            seed,
            position: 0,
        };
        let state = match from {
            Some(saved) => State::read(saved)?.of(&start.data)?,
            None => start,
        };
        let batches = match self {
            Self::Text { set, seq, .. } => {
                let (set, seq) = (Arc::clone(set), *seq);
                let mut sampler = Sampler::new(state.seed).skipping(state.position);
                let draw = move || sampler.batch(&set, samples, seq);
                let windows = std::iter::repeat_with(draw).take(batches);
                Batches::Text(Prefetch::new(AHEAD, windows)?)
            }
            Self::Synthetic(_) => {
                let (inputs, targets) = spec.sample(samples, state.seed)?;
                let left = batches;
                Batches::Made {
                    inputs,
                    targets,
                    left,
                }
            }
        };
        Ok(Feed {
            batches,
            samples,
            state,
        })
    }

    /// What a position in the data is only good for.
    fn identity(&self) -> String {
        match self {
            Self::Text { set, .. } => {
                let tokens = set.part(Split::Train).len();
                format!("text of {tokens} tokens, checksum {:08x}", set.checksum())
            }
            Self::Synthetic(_) => SYNTHETIC.to_owned(),
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

/// Batches in a row.
#[derive(Debug)]
pub(super) struct Feed {
    batches: Batches,
    samples: usize,
    state: State,
}

#[derive(Debug)]
enum Batches {
    Text(Prefetch<Result<Windows, TextError>>),
    Made {
        inputs: Values,
        targets: Values,
        left: usize,
    },
}

/// Up to where a feed was consumed; what was made ahead does not count.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    data: String,
    seed: u64,
    /// Samples consumed.
    position: u64,
}

impl State {
    fn read(saved: &Value) -> anyhow::Result<Self> {
        Self::deserialize(saved).context("the saved position in the data cannot be read")
    }

    /// Itself, if it is of this data.
    fn of(self, data: &str) -> anyhow::Result<Self> {
        anyhow::ensure!(
            self.data == data,
            "the saved position is one in other data ({}); this is {data}: name the data that \
             the run was started with",
            self.data
        );
        Ok(self)
    }
}

impl Feed {
    /// Where it stands, after the batches that were taken: for [`Source::feed`].
    #[allow(dead_code, reason = "what saves a run reads it")]
    pub(super) fn state(&self) -> Value {
        json!(self.state)
    }

    /// How long batches were waited for since the last call of this.
    #[allow(dead_code, reason = "what measures a run reads it")]
    pub(super) fn waited(&mut self) -> Duration {
        match &mut self.batches {
            Batches::Text(windows) => windows.waited(),
            Batches::Made { .. } => Duration::ZERO,
        }
    }
}

impl Iterator for Feed {
    type Item = anyhow::Result<(Values, Values)>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batches.next()?;
        if batch.is_ok() {
            self.state.position += self.samples as u64;
        }
        Some(batch)
    }
}

impl Iterator for Batches {
    type Item = anyhow::Result<(Values, Values)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Text(windows) => {
                let tensors = |windows: Windows| Ok(windows.tensors()?);
                let batch = windows.next()?.map_err(anyhow::Error::from);
                let batch = batch.and_then(tensors);
                Some(batch.map(|(x, y)| (x.into(), y.into())))
            }
            Self::Made {
                inputs,
                targets,
                left,
            } => {
                *left = left.checked_sub(1)?;
                Some(Ok((inputs.shallow_clone(), targets.shallow_clone())))
            }
        }
    }
}

/// Refuses a mini-batch that is a slip of the keyboard.
pub(super) fn check_batch(spec: &ModelSpec, batch: usize) -> Result<(), String> {
    let values = |one: &Synthetic| {
        let sides = one.shape().iter();
        sides.fold(1_i64, |product, side| product.saturating_mul(*side))
    };
    let all = spec.inputs().iter().chain(spec.targets());
    let sample = all.fold(0_i64, |sum, one| sum.saturating_add(values(one)));
    let batch = i64::try_from(batch).unwrap_or(i64::MAX);
    if batch.saturating_mul(sample) <= MAX_VALUES {
        return Ok(());
    }
    Err(format!(
        "--batch {batch}: a sample of `{}` has {sample} values with its target, and a step at \
         most {MAX_VALUES}",
        spec.name()
    ))
}

/// Tokens of a sample, where that is what a sample is.
pub(super) fn tokens(spec: &ModelSpec) -> Option<usize> {
    match spec.inputs() {
        [input] if matches!(input.fill(), Fill::Classes(_)) => match input.shape() {
            [length] => usize::try_from(*length).ok(),
            _ => None,
        },
        _ => None,
    }
}

/// The model, with the text's vocabulary where nobody chose one, and the text; or the
/// model and why they do not fit.
fn fitted(
    chosen: Chosen,
    set: TextSet,
    path: Option<PathBuf>,
) -> Result<(Chosen, Source), Box<(Chosen, String)>> {
    let vocabulary = set.vocabulary().len();
    let chosen = match adapted(&chosen, vocabulary) {
        Ok(adapted) => adapted,
        Err(why) => return Err(Box::new((chosen, why))),
    };
    match window(&chosen, &set) {
        Ok(seq) => {
            let set = Arc::new(set);
            Ok((chosen, Source::Text { set, seq, path }))
        }
        Err(why) => Err(Box::new((chosen, why))),
    }
}

fn adapted(chosen: &Chosen, vocabulary: usize) -> Result<Chosen, String> {
    if !chosen.has("vocab") || chosen.chose("vocab") {
        return Ok(chosen.clone());
    }
    let setting = format!("vocab={}", vocabulary.max(1));
    chosen.with(&[setting]).map_err(|error| error.to_string())
}

/// The tokens of a window of the text that the model takes, or why it takes none.
fn window(chosen: &Chosen, set: &TextSet) -> Result<usize, String> {
    let (spec, known) = (&chosen.spec, set.vocabulary().len());
    let name = spec.name();
    let sequence = |all: &[Synthetic]| match all {
        [one] => match (one.shape(), one.fill()) {
            (&[length], Fill::Classes(classes)) => Some((length, classes)),
            _ => None,
        },
        _ => None,
    };
    let (Some((length, tokens)), Some((targets, classes))) =
        (sequence(spec.inputs()), sequence(spec.targets()))
    else {
        return Err(format!(
            "a text is for models that give a token for each of a sequence; `{name}` maps {} to {}",
            shapes(spec.inputs()),
            shapes(spec.targets())
        ));
    };
    if length != targets {
        return Err(format!(
            "`{name}` has {targets} targets for {length} tokens, a text one for each"
        ));
    }
    if spec.sees_later_tokens() {
        return Err(format!(
            "`{name}` sees the tokens after each one: it would copy the next, not learn to tell it"
        ));
    }
    let fewest = tokens.min(classes);
    if fewest < known as i64 {
        let more = if chosen.has("vocab") {
            format!(": use {} {known}", flag("vocab"))
        } else {
            String::new()
        };
        return Err(format!(
            "the text has {known} distinct characters, but `{name}` knows {fewest} tokens{more}"
        ));
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    set.require(length).map_err(|error| error.to_string())?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::model::flags::Given;
    use crate::models::zoo::Zoo;

    fn job(data: Option<&Path>) -> (Chosen, Source) {
        let model = Chosen::new(&Zoo::builtin(), "gpt", &Given::default()).unwrap();
        Source::choose(model, data).unwrap()
    }

    fn bits(batch: Option<anyhow::Result<(Values, Values)>>) -> [Vec<i64>; 2] {
        let (x, y) = batch.unwrap().unwrap();
        [x, y].map(|values| Vec::try_from(&values.one().unwrap().reshape([-1])).unwrap())
    }

    #[test]
    fn a_feed_goes_on_from_every_state_with_the_same_batches() {
        let (chosen, source) = job(None);
        let feed = |batches, from: Option<&Value>, seed| {
            let feed = source.feed(&chosen.spec, 3, batches, seed, from);
            feed.unwrap()
        };
        let mut whole = feed(6, None, 5);
        for taken in 0..5 {
            let state = whole.state();
            let mut rest = feed(6 - taken, Some(&state), 99);
            assert_eq!(rest.state(), state);
            let next = bits(whole.next());
            assert_eq!(bits(rest.next()), next, "after {taken} batches");
        }
    }

    #[test]
    fn a_state_of_other_data_or_of_no_data_is_refused() {
        let (chosen, source) = job(None);
        let of = |state: &Value| source.feed(&chosen.spec, 3, 1, 5, Some(state));
        let other = json!({"data": "text of 7 tokens", "seed": 1, "position": 3});
        let error = of(&other).unwrap_err().to_string();
        assert!(
            error.contains("7 tokens") && error.contains("other data"),
            "{error}"
        );
        let error = format!("{:#}", of(&json!({"seed": 1})).unwrap_err());
        assert!(error.contains("missing field"), "{error}");
    }
}
