//! Samples as they were found, before anything is scaled or held out.

use std::sync::Arc;

use tch::Kind;

use super::labels::Counted;
use super::scaling::{Scaling, Usual};
use super::table::forms::{Forms, column_at};
use super::{Pair, Pairs, SampleOptions, rounding};
use crate::Source;

/// What targets are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Labels {
    /// Classes that have names.
    Named(Vec<String>),
    /// Classes that are numbers.
    Counted(Counted),
    /// Numbers, of a regression say.
    Numbers,
}

impl Labels {
    /// That classes have no sample, where that is known.
    pub(super) fn unused(&self) -> Option<String> {
        match self {
            Self::Counted(own) => own.unused(),
            _ => None,
        }
    }
}

/// What a file or a folder has.
pub(super) struct Found {
    /// As they are trained on.
    pub(super) train: Pairs,
    /// The same, without anything random.
    pub(super) plain: Pairs,
    /// What is not to be trained on, where the data says so itself.
    pub(super) test: Option<Pairs>,
    /// The shape of an input.
    pub(super) input: Vec<i64>,
    /// The shape of a target.
    pub(super) target: Vec<i64>,
    pub(super) labels: Labels,
    pub(super) usual: Usual,
    /// Whether there may be targets that losses leave out.
    pub(super) may_ignore: bool,
    /// What one of them is called, and several.
    pub(super) about: [&'static str; 2],
    /// The class of each sample, where no sample has to be read for that.
    pub(super) known: Arc<[i64]>,
    /// Why there is nothing to learn from it, where all targets are known to be one class.
    pub(super) teaches_nothing: Option<String>,
    /// What is to be said of it.
    pub(super) notes: Vec<String>,
    /// What cannot be read, as far as it is known, with why.
    pub(super) damaged: Vec<String>,
    /// Of a table: the columns of the inputs, and of the target.
    pub(super) columns: Vec<String>,
    pub(super) forms: Forms,
    /// Whether inputs that are no number are to be the mean of the others.
    pub(super) fills: bool,
    pub(super) column: Option<String>,
}

impl Found {
    /// Returns a note for the inputs and one for the targets of the first `samples` if different values
    /// become the same once they are scaled and rounded to single precision.
    pub(super) fn rounded(
        &self,
        options: &SampleOptions,
        samples: usize,
        (inputs, targets): (&Scaling, Option<&Scaling>),
    ) -> Vec<String> {
        // Images are bytes, and decoding them takes long.
        if options.kept.is_some() || self.usual == Usual::ImageNet {
            return Vec::new();
        }
        let is_float = options.kinds.map(|kind| kind == Kind::Float);
        let inputs = Some(inputs).filter(|_| is_float[0] && !options.integers);
        let inputs = inputs.and_then(|scaling| {
            rounding::first(samples, |index| Ok(self.plain.get(0, index)?.0), scaling)
        });
        let targets = targets.filter(|_| is_float[1]);
        let targets = targets.and_then(|scaling| {
            rounding::first(samples, |index| Ok(self.plain.get(0, index)?.1), scaling)
        });
        let name = |column: Option<&str>, place, of| match column {
            Some(column) => format!("`{column}`"),
            None => format!("number {place} of the {of} (counted from 0)"),
        };
        let inputs = inputs.map(|lost| {
            let column = column_at((&self.columns, &self.forms), lost.place);
            lost.said(
                &name(column, lost.place, "inputs"),
                "scale the inputs with --normalise standard, or subtract their mean from them",
            )
        });
        let targets = targets.map(|lost| {
            let what = name(self.column.as_deref(), lost.place, "targets");
            lost.said(&what, "subtract their mean from them")
        });
        inputs.into_iter().chain(targets).collect()
    }

    /// With nothing random about them.
    pub(super) fn new<S: Source<Item = Pair>>(train: S, test: Option<S>) -> Self {
        let train: Pairs = Arc::new(train);
        Self {
            plain: Arc::clone(&train),
            train,
            test: test.map(|test| Arc::new(test) as Pairs),
            input: Vec::new(),
            target: Vec::new(),
            labels: Labels::Numbers,
            usual: Usual::Plain,
            may_ignore: false,
            about: ["sample", "samples"],
            known: Arc::default(),
            teaches_nothing: None,
            notes: Vec::new(),
            damaged: Vec::new(),
            columns: Vec::new(),
            forms: Forms::new(),
            fills: false,
            column: None,
        }
    }

    /// With more that is to be said of it.
    pub(super) fn with_notes(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }
}
