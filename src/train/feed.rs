//! Feeds of training batches, and their positions.

use std::fmt;

use serde_json::Value;

use gpipe_data::{Batches, DataError, InputMeasures, Loader, Source};
use gpipe_torch::Values;

/// Inputs and targets of a mini-batch.
pub type Batch = anyhow::Result<(Values, Values)>;

/// A sequence of batches, with a position that a later run can resume from.
///
/// A [`Loader`] of pairs is one.
pub trait Feed {
    /// Returns the next batch; `None` at the end of the data.
    ///
    /// # Errors
    /// The batch cannot be made; the run ends.
    fn next_batch(&mut self) -> Option<Batch>;

    /// Returns the position after the batches taken so far, for [`IntoFeed::start`]. It is saved with
    /// every checkpoint.
    fn state(&self) -> Value;

    /// Returns the number of batches from the beginning, if known.
    fn batches(&self) -> Option<usize> {
        None
    }

    /// Returns the items skipped so far because they could not be made; the trainer warns of each.
    fn skipped(&self) -> &[DataError] {
        &[]
    }

    /// Returns measures of loading and training since the first batch, if available.
    fn measures(&self) -> Option<InputMeasures> {
        None
    }
}

impl<X: Into<Values>, Y: Into<Values>> Feed for Loader<(X, Y)> {
    fn next_batch(&mut self) -> Option<Batch> {
        let batch = self.next()?;
        Some(batch.map_or_else(|e| Err(e.into()), |(x, y)| Ok((x.into(), y.into()))))
    }

    fn state(&self) -> Value {
        Loader::state(self)
    }

    fn skipped(&self) -> &[DataError] {
        Loader::skipped(self)
    }

    fn measures(&self) -> Option<InputMeasures> {
        Loader::measures(self)
    }
}

/// A source of batches, started once the position is known.
///
/// [`Batches`] of pairs are one, and so is every function from an optional saved position to a
/// [`Feed`].
pub trait IntoFeed {
    /// Type of the feed.
    type Feed: Feed;

    /// Starts the feed, from the state of an earlier feed of the same data if given.
    ///
    /// # Errors
    /// The state is invalid or of other data, or the data does not exist.
    fn start(self, from: Option<&Value>) -> anyhow::Result<Self::Feed>;
}

impl<S, X, Y> IntoFeed for Batches<S, (X, Y)>
where
    S: Source,
    X: Into<Values> + Send + 'static,
    Y: Into<Values> + Send + 'static,
{
    type Feed = Loader<(X, Y)>;

    fn start(self, from: Option<&Value>) -> anyhow::Result<Self::Feed> {
        let batches = match from {
            Some(state) => self.resume(state),
            None => self,
        };
        Ok(batches.load()?)
    }
}

impl<F, G> IntoFeed for F
where
    F: FnOnce(Option<&Value>) -> anyhow::Result<G>,
    G: Feed,
{
    type Feed = G;

    fn start(self, from: Option<&Value>) -> anyhow::Result<G> {
        self(from)
    }
}

/// A type-erased [`Feed`].
pub(super) struct AnyFeed<'a>(pub(super) Box<dyn Feed + 'a>);

/// A type-erased [`IntoFeed`].
pub(super) struct Start<'a>(Box<StartFn<'a>>);

type StartFn<'a> = dyn FnOnce(Option<&Value>) -> anyhow::Result<AnyFeed<'a>> + 'a;

impl<'a> Start<'a> {
    pub(super) fn new<D: IntoFeed<Feed: 'a> + 'a>(data: D) -> Self {
        Self(Box::new(move |from| {
            Ok(AnyFeed(Box::new(data.start(from)?)))
        }))
    }

    pub(super) fn start(self, from: Option<&Value>) -> anyhow::Result<AnyFeed<'a>> {
        (self.0)(from)
    }
}

impl fmt::Debug for AnyFeed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyFeed")
    }
}

impl fmt::Debug for Start<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Start")
    }
}
