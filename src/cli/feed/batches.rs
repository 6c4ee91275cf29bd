//! Feeds of batches, and their saved positions.

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tch::Tensor;

use super::learned::{Learned, Pace, Rows};
use super::{SYNTHETIC, Windows};
use gpipe_data::{DataError, InputMeasures, Loader, Part, Tokens};
use gpipe_models::zoo::ModelSpec;
use gpipe_torch::Values;
use gpipe_train::IntoFeed;

/// Models that can begin with Hugging Face weights.
const BEGIN: [&str; 2] = ["gpt", "llama"];
/// Upper bound of samples in a run.
const MOST: u64 = 1 << 53;

/// A limited sequence of batches.
#[derive(Debug)]
pub(crate) struct Feed {
    batches: Batches,
    left: usize,
}

#[derive(Debug)]
enum Batches {
    Windows(Loader<(Tensor, Tensor)>),
    Samples(Rows),
    Made {
        inputs: Values,
        targets: Values,
        state: MadeState,
    },
}

/// The position in made-up data, whose batches differ only in the assignment of targets to inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MadeState {
    data: String,
    /// Samples consumed.
    position: u64,
}

impl Feed {
    pub(super) fn windows(
        spec: &ModelSpec,
        windows: &Windows,
        (samples, batches): (usize, usize),
        seed: u64,
        from: Option<&Value>,
    ) -> anyhow::Result<Self> {
        let (tokens, seq, pace) = (&windows.train, windows.seq, windows.pace);
        let loader = if windows.shuffle {
            pace.load(tokens.random_windows(seq, seed)?.batch(samples), from)
        } else {
            let side_by_side = tokens.windows(seq)?.batch(samples);
            pace.load(side_by_side.drop_last().endless(), from)
        };
        let loader = loader.map_err(|error| explained(error, spec))?;
        Ok(Self {
            batches: Batches::Windows(loader),
            left: batches,
        })
    }

    pub(super) fn samples(
        spec: &ModelSpec,
        samples: &Learned,
        sizes: (usize, Pace),
        batches: usize,
        from: Option<&Value>,
    ) -> anyhow::Result<Self> {
        let rows = samples.load(Part::Train, sizes, from);
        let rows = rows.map_err(|error| explained(error, spec))?;
        let rows = rows.ok_or_else(|| anyhow::anyhow!("nothing is trained on"))?;
        Ok(Self {
            batches: Batches::Samples(rows),
            left: batches,
        })
    }

    pub(super) fn made(
        spec: &ModelSpec,
        samples: usize,
        batches: usize,
        seed: u64,
        from: Option<&Value>,
    ) -> anyhow::Result<Self> {
        let here = format!("{SYNTHETIC} data of {samples} samples with seed {seed}");
        let state = match from {
            Some(saved) => of_this(MadeState::deserialize(saved), here, spec)?,
            None => MadeState {
                data: here,
                position: 0,
            },
        };
        let (inputs, targets) = spec.sample(samples, seed)?;
        Ok(Self {
            batches: Batches::Made {
                inputs,
                targets,
                state,
            },
            left: batches,
        })
    }
}

impl gpipe_train::Feed for Feed {
    fn next_batch(&mut self) -> Option<gpipe_train::Batch> {
        self.next()
    }

    fn state(&self) -> Value {
        self.batches.state()
    }

    fn skipped(&self) -> &[DataError] {
        match &self.batches {
            Batches::Windows(loader) => loader.skipped(),
            Batches::Samples(rows) => rows.skipped(),
            Batches::Made { .. } => &[],
        }
    }

    fn measures(&self) -> Option<InputMeasures> {
        self.batches.measures()
    }
}

/// Held-out data, not yet loading.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldOut<'a> {
    from: Judged<'a>,
    samples: usize,
    most: Option<usize>,
    /// Samples of a last, smaller batch that the model does not take.
    left_out: usize,
}

impl<'a> HeldOut<'a> {
    /// Held-out data in batches of `samples`, at most `most` of them. A smaller last batch is left out
    /// if `takes` rejects its size.
    pub(super) fn new(
        from: Judged<'a>,
        samples: usize,
        most: Option<usize>,
        takes: impl Fn(usize) -> bool,
    ) -> Self {
        let rest = from.len() % samples;
        Self {
            from,
            samples,
            most,
            left_out: if rest > 0 && !takes(rest) { rest } else { 0 },
        }
    }

    /// Number of batches, including those beyond `most`.
    pub(crate) fn batches(&self) -> usize {
        let len = self.from.len();
        (len - self.left_out.min(len)).div_ceil(self.samples)
    }

    /// Returns the number of samples left out, and of all samples.
    pub(crate) fn left_out(&self) -> (usize, usize) {
        (self.left_out, self.from.len())
    }
}

/// Source of held-out data.
#[derive(Debug, Clone, Copy)]
pub(super) enum Judged<'a> {
    /// Windows of this length.
    Windows(&'a Tokens, usize),
    /// A part of samples, loaded at this pace.
    Samples(&'a Learned, Part, Pace),
}

impl Judged<'_> {
    /// Returns the number of samples.
    pub(super) fn len(&self) -> usize {
        match self {
            // All windows that fit, each with its next token.
            Self::Windows(tokens, seq) => tokens.len().saturating_sub(1) / seq,
            Self::Samples(samples, Part::HeldOut, _) => samples.held_out_len(),
            Self::Samples(samples, ..) => samples.len(),
        }
    }
}

impl IntoFeed for HeldOut<'_> {
    type Feed = HeldOutBatches;

    fn start(self, _: Option<&Value>) -> anyhow::Result<HeldOutBatches> {
        let loader = match self.from {
            Judged::Windows(tokens, seq) => {
                let windows = tokens.windows(seq)?;
                Batches::Windows(windows.batch(self.samples).load()?)
            }
            Judged::Samples(samples, part, pace) => {
                let rows = samples.load(part, (self.samples, pace), None)?;
                Batches::Samples(rows.ok_or_else(|| anyhow::anyhow!("nothing is held out"))?)
            }
        };
        let all = self.batches();
        let count = self.most.map_or(all, |most| most.min(all));
        Ok(HeldOutBatches {
            loader,
            left: count,
            count,
        })
    }
}

/// Held-out batches while loading.
#[derive(Debug)]
pub(crate) struct HeldOutBatches {
    loader: Batches,
    left: usize,
    count: usize,
}

impl gpipe_train::Feed for HeldOutBatches {
    fn next_batch(&mut self) -> Option<gpipe_train::Batch> {
        self.left = self.left.checked_sub(1)?;
        self.loader.next()
    }

    fn state(&self) -> Value {
        self.loader.state()
    }

    fn batches(&self) -> Option<usize> {
        Some(self.count)
    }
}

impl Iterator for Feed {
    type Item = anyhow::Result<(Values, Values)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.batches.next()
    }
}

impl Batches {
    fn measures(&self) -> Option<InputMeasures> {
        match self {
            Self::Windows(loader) => loader.measures(),
            Self::Samples(rows) => rows.measures(),
            Self::Made { .. } => None,
        }
    }

    fn state(&self) -> Value {
        match self {
            Self::Windows(loader) => loader.state(),
            Self::Samples(rows) => rows.state(),
            Self::Made { state, .. } => json!(state),
        }
    }

    fn next(&mut self) -> Option<gpipe_train::Batch> {
        match self {
            Self::Windows(loader) => gpipe_train::Feed::next_batch(loader),
            Self::Samples(rows) => gpipe_train::Feed::next_batch(rows),
            Self::Made {
                inputs,
                targets,
                state,
            } => {
                let samples = targets.present().chain(inputs.present()).next();
                let samples = samples.map_or(0, |tensor| tensor.size()[0]);
                let targets = turned(targets, state.position, samples);
                state.position += samples as u64;
                Some(Ok((inputs.shallow_clone(), targets)))
            }
        }
    }
}

/// Rolls the targets by one place per batch: a model that could memorize one batch would soon have
/// denormal gradients, which are several times slower on a CPU and would distort measured speed.
fn turned(targets: &Values, position: u64, samples: i64) -> Values {
    let batches = position / samples.max(1).unsigned_abs();
    let turn = |target: &Tensor| {
        let places = (batches % (target.numel() as u64).max(1)) as i64;
        target.reshape([-1]).roll(places, 0).view_as(target)
    };
    targets.iter().map(|target| target.map(turn)).collect()
}

/// Adds advice to the error of a position in other data.
fn explained(error: DataError, spec: &ModelSpec) -> anyhow::Error {
    let other = matches!(error, DataError::OtherData { .. });
    let error = anyhow::Error::from(error);
    if !other {
        return error;
    }
    let same = "go on with the data, the seed and the sizes that the run began with";
    let begins = spec.exported().is_some() || BEGIN.contains(&spec.entry().name());
    if begins {
        let weights = "on other data a new run of the model begins with what `export` makes of this \
                       one, as --weights";
        return error.context(format!("{same}; {weights}"));
    }
    error.context(same)
}

/// Accepts a saved position only if it belongs to this data.
fn of_this(
    saved: Result<MadeState, serde_json::Error>,
    here: String,
    spec: &ModelSpec,
) -> anyhow::Result<MadeState> {
    let saved = saved.map_err(DataError::State)?;
    if saved.position >= MOST {
        let what = format!("a position of {} cannot be", saved.position);
        return Err(DataError::State(serde_json::Error::custom(what)).into());
    }
    if saved.data == here {
        return Ok(saved);
    }
    let saved = saved.data;
    Err(explained(DataError::OtherData { saved, here }, spec))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::feed::{DataOptions, Source};
    use crate::model::Chosen;
    use crate::model::exported::AskedLoss;
    use crate::model::flags::Given;
    use gpipe_models::zoo::Zoo;
    use gpipe_train::Feed as _;

    fn job(data: Option<&Path>) -> (Chosen, Source) {
        let model = Chosen::new(
            &Zoo::builtin(),
            "gpt",
            &Given::default(),
            AskedLoss::default(),
        )
        .unwrap();
        Source::choose(model, data, None, &DataOptions::default()).unwrap()
    }

    fn bits(batch: Option<anyhow::Result<(Values, Values)>>) -> [Vec<i64>; 2] {
        let (x, y) = batch.unwrap().unwrap();
        [x, y].map(|values| Vec::try_from(&values.one().unwrap().reshape([-1])).unwrap())
    }

    #[test]
    fn a_feed_goes_on_from_every_state_with_the_same_batches() {
        let (chosen, source) = job(None);
        let feed = |batches, from: Option<&Value>| {
            let feed = source.feed(&chosen.spec, 3, batches, 5, from);
            feed.unwrap()
        };
        let mut whole = feed(6, None);
        for taken in 0..5 {
            let state = whole.state();
            let mut rest = feed(6 - taken, Some(&state));
            assert_eq!(rest.state(), state);
            let next = bits(whole.next());
            assert_eq!(bits(rest.next()), next, "after {taken} batches");
        }
    }

    #[test]
    fn a_state_of_other_data_or_of_no_data_is_refused() {
        let (chosen, source) = job(None);
        let of = |state: &Value| source.feed(&chosen.spec, 3, 1, 5, Some(state));
        let other = json!({"data": "7 tokens", "epoch": 0, "position": 3, "skipped": 0});
        let error = format!("{:#}", of(&other).unwrap_err());
        assert!(
            error.contains("it was 7 tokens") && error.contains("other data"),
            "{error}"
        );
        assert!(error.starts_with("go on with the data"), "{error}");
        // Accepted, it would overflow when a batch advances the position.
        let here = source.feed(&chosen.spec, 3, 1, 5, None).unwrap().state();
        for (field, value) in [("position", u64::MAX), ("epoch", u64::MAX)] {
            let mut far = here.clone();
            far[field] = json!(value);
            let error = format!("{:#}", of(&far).unwrap_err());
            assert!(error.contains("cannot be"), "{field}: {error}");
        }
        let (chosen, made) = job(Some(Path::new(SYNTHETIC)));
        let mut far = made.feed(&chosen.spec, 3, 1, 5, None).unwrap().state();
        far["position"] = json!(u64::MAX);
        let error = made.feed(&chosen.spec, 3, 1, 5, Some(&far)).unwrap_err();
        assert!(format!("{error:#}").contains("cannot be"), "{error:#}");
        let error = format!("{:#}", of(&json!({"epoch": 1})).unwrap_err());
        assert!(error.contains("missing field"), "{error}");
    }
}
