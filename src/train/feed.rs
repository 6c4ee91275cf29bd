//! Batches to train on, and where one is among them.

use std::fmt;

use serde_json::Value;

use gpipe_data::{Batches, DataError, InputMeasures, Loader, Source};
use gpipe_torch::Values;

/// Inputs and targets of a mini-batch.
pub type Batch = anyhow::Result<(Values, Values)>;

/// Batches in a row, with a position that a later run resumes from.
///
/// A [`Loader`] of pairs is one.
pub trait Feed {
    /// The next batch; `None` at the end of the data.
    ///
    /// # Errors
    /// It cannot be made: the run ends.
    fn next_batch(&mut self) -> Option<Batch>;

    /// Where it stands, after the batches that were taken: what [`IntoFeed::start`] goes on
    /// from. It is saved with every checkpoint.
    fn state(&self) -> Value;

    /// How many batches there are from its beginning, where that is known.
    fn batches(&self) -> Option<usize> {
        None
    }

    /// What was skipped, as it could not be made, on the way to where it stands: the trainer warns of
    /// each.
    fn skipped(&self) -> &[DataError] {
        &[]
    }

    /// What loading and training take since its first batch, where that is measured.
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

/// What a run takes its batches from, begun when it is known where.
///
/// [`Batches`] of pairs are it, and so is every function from a saved position, or none, to
/// a [`Feed`].
pub trait IntoFeed {
    /// The batches.
    type Feed: Feed;

    /// Begins, with the state of an earlier feed of the same data where that stood.
    ///
    /// # Errors
    /// The state is none, or of other data; there is no such data.
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

/// A [`Feed`] whose type is forgotten.
pub(super) struct AnyFeed<'a>(pub(super) Box<dyn Feed + 'a>);

/// An [`IntoFeed`] whose type is forgotten.
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
