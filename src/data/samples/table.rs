//! Tables: CSV with a header, and files of columns, whose cells are taken as those of CSV are.

use std::path::{Path, PathBuf};

use csv::{ReaderBuilder, StringRecord};
use gpipe_partitioner::words::count;
use tch::Tensor;

mod cell;
mod classes;
mod layout;
mod origin;
mod said;
mod text;
mod words;

use super::found::{Found, Labels};
#[cfg(not(feature = "parquet"))]
use super::kinds::NO_COLUMNS;
use super::kinds::has_columns;
use super::scaling::Usual;
use super::{Pair, SampleOptions};
use crate::TorchError;
#[cfg(feature = "parquet")]
use crate::data::Columns;
use crate::data::{DataError, Place, Source};
use cell::{INPUTS, TARGETS, is_missing, missing, number};
use layout::{Input, Layout, Wanted};
use origin::Origin;
pub(super) use said::scaled;
use said::{are_numbers, counting, far_from_outputs};
#[cfg(feature = "parquet")]
use text::refuse_large;
use text::{at, check_names, damaged, line, separator};
use words::Search;
pub(super) use words::Words;

/// What targets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Learns {
    Classes,
    Numbers,
    /// Nobody knows them, and none is read.
    Nothing,
}

/// The rows of a table in memory: numbers in, one target each.
#[derive(Debug)]
struct Table {
    origin: Origin,
    columns: usize,
    /// Numbers of a row.
    width: usize,
    /// Row after row.
    x: Vec<f32>,
    /// Numbers, or the numbers of classes.
    y: Vec<f64>,
    learns: Learns,
    sum: u32,
}

/// The rows of a table, and of one that is not to be trained on: a text each, or files of columns.
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

/// The same, whatever it learns.
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
    let wanted = Wanted {
        // What a run has kept is without them.
        dropped: if columns.is_some() {
            &[]
        } else {
            &options.dropped
        },
        words: columns
            .is_some()
            .then(|| kept.map_or_else(Words::new, |own| own.words.clone())),
        columns,
        target,
    };
    let (train, names, layout) = Table::read(train, &wanted, learns, known)?;
    let words = layout.words();
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
            words: Some(words.clone()),
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
            "column `{target}` is `{}` in all {}: there is nothing to tell apart; name the column of \
             the classes with --target, or give rows of another class, too",
            names[0],
            count(train.len(), "row")
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
    let notes = words::said(&words).into_iter().chain(far).chain(numbered);
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
        about: ["row of a table", "rows of a table"],
        columns,
        words,
        column: Some(target),
        ..Found::new(train, test.transpose()?)
    })
}

impl Table {
    fn read(
        paths: &[PathBuf],
        wanted: &Wanted<'_>,
        learns: Learns,
        known: Option<Vec<String>>,
    ) -> Result<(Self, Option<Vec<String>>, Layout), DataError> {
        let (table, labels, layout) = match paths {
            [path] if !has_columns(path) => Self::text(path, wanted, learns)?,
            #[cfg(feature = "parquet")]
            paths => Self::columns(paths, wanted, learns)?,
            #[cfg(not(feature = "parquet"))]
            paths => {
                let first = paths.first().map_or(Path::new(""), PathBuf::as_path);
                return Err(DataError::bad_path(first, NO_COLUMNS));
            }
        };
        table.named(&labels, known, layout)
    }

    fn text(
        path: &Path,
        wanted: &Wanted<'_>,
        learns: Learns,
    ) -> Result<(Self, Vec<String>, Layout), DataError> {
        let text = text::read(path)?;
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        let begin = || {
            let mut reader = ReaderBuilder::new();
            let reader = reader.delimiter(separator(text)).trim(csv::Trim::All);
            let mut reader = reader.from_reader(text);
            // Without it, what is wrong further down has no line.
            let header = reader.headers();
            let header = header.map_err(|error| damaged(path, &error))?.clone();
            Ok::<_, DataError>((reader, header))
        };
        let (mut reader, header) = begin()?;
        check_names(&header).map_err(|why| at(path, 1, why))?;
        let mut layout = Layout::of(&header, wanted).map_err(|why| at(path, 1, why))?;
        if wanted.words.is_none() {
            let mut search = Search::new(&layout);
            for record in begin()?.0.records() {
                if !search.row(&record.map_err(|error| damaged(path, &error))?) {
                    break;
                }
            }
            let words = search.words().map_err(|why| at(path, 1, why))?;
            layout.take(words);
        }
        let origin = Origin::Text {
            path: path.to_owned(),
            lines: Vec::new(),
        };
        let mut table = Self::empty(origin, &layout, learns, crc32c::crc32c(text));
        let (mut labels, mut lines) = (Vec::new(), Vec::new());
        for record in reader.records() {
            let record = record.map_err(|error| damaged(path, &error))?;
            let line = record.position().map_or(1, |start| line(text, start));
            let row = table.row(&layout, &record, &mut labels);
            row.map_err(|why| at(path, line, why))?;
            lines.push(line);
        }
        if lines.is_empty() {
            return Err(at(path, 1, "there is no row below the header".to_owned()));
        }
        let path = path.to_owned();
        table.origin = Origin::Text { path, lines };
        Ok((table, labels, layout))
    }

    /// The rows of files of columns.
    #[cfg(feature = "parquet")]
    fn columns(
        paths: &[PathBuf],
        wanted: &Wanted<'_>,
        learns: Learns,
    ) -> Result<(Self, Vec<String>, Layout), DataError> {
        let rows = Columns::open(paths)?;
        let header = StringRecord::from(rows.columns());
        let wrong = |why| DataError::bad_path(rows.path(), why);
        let mut layout = Layout::of(&header, wanted).map_err(wrong)?;
        if wanted.words.is_none() {
            let mut search = Search::new(&layout);
            for row in 0..rows.len() {
                let cells = rows.shown(row)?.into_iter().map(Option::unwrap_or_default);
                if !search.row(&cells.collect()) {
                    break;
                }
            }
            let words = search.words().map_err(wrong)?;
            layout.take(words);
        }
        // Of each row its numbers, and what its target is in words.
        let needed = rows.len() as u64 * (4 * layout.width() as u64 + 32);
        refuse_large(rows.path(), needed)?;
        let sum = crc32c::crc32c(rows.identity().as_bytes());
        let mut table = Self::empty(Origin::Columns(rows), &layout, learns, sum);
        let mut labels = Vec::new();
        for row in 0..table.origin.rows() {
            let Origin::Columns(rows) = &table.origin else {
                break;
            };
            let bad = |what| DataError::Bad {
                place: rows.place(0, row),
                what,
            };
            let cells = rows.shown(row)?;
            let inputs = layout.inputs.iter().map(|own| (&own.name, own.place));
            let mut own = inputs.chain([(&layout.target.0, layout.target.1)]);
            if let Some((name, _)) = own.find(|(_, place)| cells[*place].is_none()) {
                let what = format!(
                    "column `{name}` has neither a number nor a text here: leave it out with \
                     --drop-columns, or make arrays of it"
                );
                return Err(bad(what));
            }
            let cells = cells.into_iter().map(Option::unwrap_or_default);
            let record: StringRecord = cells.collect();
            let place = rows.place(0, row);
            let row = table.row(&layout, &record, &mut labels);
            row.map_err(|what| DataError::Bad { place, what })?;
        }
        Ok((table, labels, layout))
    }

    fn empty(origin: Origin, layout: &Layout, learns: Learns, sum: u32) -> Self {
        Self {
            origin,
            columns: layout.inputs.len(),
            width: layout.width(),
            x: Vec::new(),
            y: Vec::new(),
            learns,
            sum,
        }
    }

    /// Takes up a row.
    fn row(
        &mut self,
        layout: &Layout,
        record: &StringRecord,
        labels: &mut Vec<String>,
    ) -> Result<(), String> {
        for Input { name, place, words } in &layout.inputs {
            let cell = &record[*place];
            if words.is_empty() {
                self.x.push(number(cell, name, INPUTS)? as f32);
            } else if is_missing(cell) {
                return Err(missing(name));
            } else {
                self.x.extend(words::numbers(cell, name, words)?);
            }
        }
        let (name, place) = &layout.target;
        let cell = &record[*place];
        if self.learns == Learns::Nothing {
            self.y.push(0.0);
        } else if self.learns == Learns::Classes {
            if is_missing(cell) {
                return Err(missing(name));
            }
            labels.push(cell.to_owned());
        } else {
            self.y.push(number(cell, name, TARGETS)?);
        }
        Ok(())
    }
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
