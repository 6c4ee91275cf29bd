//! Samples as read, before scaling and splitting.

use std::sync::Arc;

use tch::Kind;

use super::labels::Counted;
use super::scaling::{Scaling, Usual};
use super::table::forms::{Forms, column_at};
use super::{Pair, Pairs, SampleOptions, rounding};
use crate::Source;

/// The kind of targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Labels {
    /// Named classes.
    Named(Vec<String>),
    /// Numbered classes.
    Counted(Counted),
    /// Numbers, such as a regression's.
    Numbers,
}

impl Labels {
    /// Notes that some classes have no samples, if known.
    pub(super) fn unused(&self) -> Option<String> {
        match self {
            Self::Counted(own) => own.unused(),
            _ => None,
        }
    }
}

/// The contents of a file or a folder.
pub(super) struct Found {
    /// Training samples, with augmentation.
    pub(super) train: Pairs,
    /// Training samples without randomness.
    pub(super) plain: Pairs,
    /// The test part, if the data defines one.
    pub(super) test: Option<Pairs>,
    /// Returns the shape of an input.
    pub(super) input: Vec<i64>,
    /// The shape of a target.
    pub(super) target: Vec<i64>,
    pub(super) labels: Labels,
    pub(super) usual: Usual,
    /// Whether some targets may be ignored by losses.
    pub(super) may_ignore: bool,
    /// Singular and plural of a sample's name.
    pub(super) about: [&'static str; 2],
    /// Class of each sample, if known without reading samples.
    pub(super) known: Arc<[i64]>,
    /// The reason why nothing can be learned: all targets are known to be one class.
    pub(super) teaches_nothing: Option<String>,
    /// Notes about the data.
    pub(super) notes: Vec<String>,
    /// Descriptions of samples known to be unreadable.
    pub(super) damaged: Vec<String>,
    /// Input columns of a table.
    pub(super) columns: Vec<String>,
    pub(super) forms: Forms,
    /// Whether NaN inputs are replaced with the mean of the others.
    pub(super) fills: bool,
    pub(super) column: Option<String>,
}

impl Found {
    /// Notes that inputs or targets of the first `samples` lose distinct values when scaled and rounded
    /// to single precision.
    pub(super) fn rounded(
        &self,
        options: &SampleOptions,
        samples: usize,
        (inputs, targets): (&Scaling, Option<&Scaling>),
    ) -> Vec<String> {
        // Images are bytes, and decoding them is slow.
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

    /// Makes samples without randomness.
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

    /// Adds notes.
    pub(super) fn with_notes(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }
}
