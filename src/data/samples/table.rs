//! Tables: CSV with a header, and columnar files, whose cells are treated like CSV's.

use std::path::PathBuf;

use gpipe_partitioner::words::{all, count};
use tch::Tensor;

mod cell;
mod cells;
mod classes;
mod dates;
pub(super) mod forms;
mod layout;
mod origin;
mod reading;
mod said;
mod search;
mod text;

use super::found::{Found, Labels};
use super::scaling::Usual;
use super::{Missing, Pair, SampleOptions};
use crate::{DataError, Place, Source};
pub use cells::cells;
use forms::Forms;
use gpipe_torch::TorchError;
use layout::Wanted;
use origin::Origin;
pub(super) use said::scaled;
use said::{are_numbers, counting, far_from_outputs};

/// The kind of targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Learns {
    Classes,
    Numbers,
    /// Targets are unknown and not read.
    Nothing,
}

/// The rows of a table in memory: numeric inputs, and one target each.
#[derive(Debug)]
struct Table {
    origin: Origin,
    columns: usize,
    /// Numbers per row.
    width: usize,
    /// Concatenated rows.
    x: Vec<f64>,
    /// Numbers, or class numbers.
    y: Vec<f64>,
    learns: Learns,
    missing: Missing,
    sum: u32,
    /// Number of rows left out for missing cells.
    left_out: usize,
}

/// Reads the rows of a table, and of a held-out one: a text each, or columnar files.
pub(super) fn found(
    train: &[PathBuf],
    test: Option<&[PathBuf]>,
    options: &SampleOptions,
) -> Result<Found, DataError> {
    let learns = if options.classes {
        Learns::Classes
    } else {
        Learns::Numbers
    };
    self::read(train, test, options, learns)
}

/// Like [`found`], for any kind of targets.
pub(super) fn read(
    train: &[PathBuf],
    test: Option<&[PathBuf]>,
    options: &SampleOptions,
    learns: Learns,
) -> Result<Found, DataError> {
    let classes = learns == Learns::Classes;
    let kept = options.kept.as_ref();
    let known = kept
        .map(|kept| kept.names.clone())
        .filter(|own| !own.is_empty());
    let columns = kept
        .map(|kept| kept.columns.clone())
        .filter(|own| !own.is_empty());
    let target = options
        .column
        .clone()
        .or_else(|| kept.and_then(|kept| kept.target.clone()));
    let missing = match options.missing {
        // Every row to predict needs an answer.
        Missing::Drop if learns == Learns::Nothing => Missing::Refuse,
        missing => missing,
    };
    let wanted = Wanted {
        // The saved columns are without the dropped ones.
        dropped: if columns.is_some() {
            &[]
        } else {
            &options.dropped
        },
        known: columns
            .is_some()
            .then(|| kept.map_or_else(Forms::new, |own| own.forms.clone())),
        columns,
        target,
        missing,
    };
    let (train, names, layout) = Table::read(train, &wanted, learns, known)?;
    let forms = layout.forms();
    let numbered = if kept.is_some() {
        None
    } else {
        counting(&layout, &train.x)
    };
    let columns: Vec<String> = layout.inputs.into_iter().map(|own| own.name).collect();
    let target = layout.target.0;
    let names = names.filter(|_| classes);
    let test = test.map(|test| {
        let same = Wanted {
            columns: Some(columns.clone()),
            target: Some(target.clone()),
            dropped: &[],
            known: Some(forms.clone()),
            missing,
        };
        let read = Table::read(test, &same, learns, names.clone())?;
        Ok::<_, DataError>(read.0)
    });
    let shape = if classes { vec![] } else { vec![1] };
    let teaches_nothing = match &names {
        Some(names) if are_numbers(names, train.len()) => Some(format!(
            "column `{target}` has {} different numbers in {}, too many to be classes: name the column \
             of the classes with --target, or take a model and a loss for numbers, such as `mlp` with \
             --loss mse",
            names.len(),
            count(train.len(), "row")
        )),
        Some(names) if names.len() == 1 => Some(format!(
            "column `{target}` is `{}` in {}: there is nothing to tell apart; name the column of \
             the classes with --target, or give rows of another class, too",
            names[0],
            all(train.len(), "row")
        )),
        _ => None,
    };
    let known = if classes { &train.y[..] } else { &[] };
    let scaled = options.scaled_targets && options.scales_by_statistics();
    let far = if classes || kept.is_some() || scaled {
        None
    } else {
        far_from_outputs(&train.y, &target)
    };
    let notes = forms::said(&forms).into_iter().chain(far).chain(numbered);
    let notes = notes.chain(said::left_out(train.left_out));
    let all = columns.iter().chain([&target]).map(String::as_str);
    let headless = kept.is_none().then(|| said::no_header(all)).flatten();
    let notes = headless.into_iter().chain(notes);
    Ok(Found {
        notes: notes.collect(),
        input: vec![train.width as i64],
        known: known.iter().map(|class| *class as i64).collect(),
        teaches_nothing,
        target: shape,
        labels: match names {
            Some(names) => Labels::Named(names),
            None => Labels::Numbers,
        },
        usual: Usual::Standard,
        about: ["row", "rows"],
        columns,
        forms,
        fills: missing == Missing::Fill,
        column: Some(target),
        ..Found::new(train, test.transpose()?)
    })
}

impl Source for Table {
    type Item = Pair;

    fn len(&self) -> usize {
        self.origin.rows()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Pair, DataError> {
        let pair = || -> Result<Pair, TorchError> {
            let x = &self.x[index * self.width..][..self.width];
            let y = if self.learns == Learns::Classes {
                Tensor::from(self.y[index] as i64)
            } else {
                Tensor::f_from_slice(&[self.y[index]])?
            };
            Ok((Tensor::f_from_slice(x)?, y))
        };
        pair().map_err(|error| DataError::Item {
            place: self.place(epoch, index),
            source: error.into(),
        })
    }

    fn place(&self, _: u64, index: usize) -> Place {
        self.origin.place(index)
    }

    fn identity(&self) -> String {
        let (rows, sum) = (self.origin.rows(), self.sum);
        format!(
            "a table of {rows} rows and {} columns with checksum {sum:08x}",
            self.columns + 1
        )
    }
}
