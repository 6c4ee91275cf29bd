//! Tables: CSV with a header, and files of columns, whose cells are taken as those of CSV are.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use csv::{ReaderBuilder, StringRecord};
use gpipe_partitioner::words::count;
use tch::Tensor;

mod cell;
mod layout;
mod said;
mod text;

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
use layout::{Layout, Wanted, listed};
pub(super) use said::scaled;
use said::{are_numbers, counting, far_from_outputs};
#[cfg(feature = "parquet")]
use text::refuse_large;
use text::{at, check_names, damaged, line, read, separator};

/// The rows of a table in memory: numbers in, one target each.
#[derive(Debug)]
struct Table {
    origin: Origin,
    columns: usize,
    /// Row after row.
    x: Vec<f32>,
    /// Numbers, or the numbers of classes.
    y: Vec<f64>,
    classes: bool,
    sum: u32,
}

/// Where rows come from.
#[derive(Debug)]
enum Origin {
    /// A text, and the line of each row.
    Text { path: PathBuf, lines: Vec<u64> },
    #[cfg(feature = "parquet")]
    Columns(Columns),
}

impl Origin {
    fn place(&self, row: usize) -> Place {
        match self {
            Self::Text { path, lines } => Place::Line {
                path: path.clone(),
                line: lines[row],
            },
            #[cfg(feature = "parquet")]
            Self::Columns(own) => own.place(0, row),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Text { path, .. } => path,
            #[cfg(feature = "parquet")]
            Self::Columns(own) => own.path(),
        }
    }

    fn rows(&self) -> usize {
        match self {
            Self::Text { lines, .. } => lines.len(),
            #[cfg(feature = "parquet")]
            Self::Columns(own) => own.len(),
        }
    }
}

/// The rows of a table, and of one that is not to be trained on: a text each, or files of columns.
pub(super) fn found(
    train: &[PathBuf],
    test: Option<&[PathBuf]>,
    options: &SampleOptions,
) -> Result<Found, DataError> {
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
        columns,
        target,
    };
    let (train, names, layout) = Table::read(train, &wanted, options.classes, known)?;
    let columns: Vec<String> = layout.inputs.into_iter().map(|(name, _)| name).collect();
    let target = layout.target.0;
    let names = names.filter(|_| options.classes);
    let test = test.map(|test| {
        let same = Wanted {
            columns: Some(columns.clone()),
            target: Some(target.clone()),
            dropped: &[],
        };
        let read = Table::read(test, &same, options.classes, names.clone())?;
        Ok::<_, DataError>(read.0)
    });
    let shape = if options.classes { vec![] } else { vec![1] };
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
    let known = if options.classes { &train.y[..] } else { &[] };
    let scaled = options.scaled_targets && options.scales_by_statistics();
    let far = if options.classes || kept.is_some() || scaled {
        None
    } else {
        far_from_outputs(&train.y, &target)
    };
    let numbered = if kept.is_some() {
        None
    } else {
        counting(&columns, &train.x)
    };
    Ok(Found {
        notes: far.into_iter().chain(numbered).collect(),
        input: vec![columns.len() as i64],
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
        column: Some(target),
        ..Found::new(train, test.transpose()?)
    })
}

impl Table {
    fn read(
        paths: &[PathBuf],
        wanted: &Wanted<'_>,
        classes: bool,
        known: Option<Vec<String>>,
    ) -> Result<(Self, Option<Vec<String>>, Layout), DataError> {
        let (table, labels, layout) = match paths {
            [path] if !has_columns(path) => Self::text(path, wanted, classes)?,
            #[cfg(feature = "parquet")]
            paths => Self::columns(paths, wanted, classes)?,
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
        classes: bool,
    ) -> Result<(Self, Vec<String>, Layout), DataError> {
        let text = read(path)?;
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        let mut reader = ReaderBuilder::new()
            .delimiter(separator(text))
            .trim(csv::Trim::All)
            .from_reader(text);
        let header = reader.headers().map_err(|error| damaged(path, &error))?;
        check_names(header).map_err(|why| at(path, 1, why))?;
        let layout = Layout::of(header, wanted).map_err(|why| at(path, 1, why))?;
        let origin = Origin::Text {
            path: path.to_owned(),
            lines: Vec::new(),
        };
        let mut table = Self::empty(origin, &layout, classes, crc32c::crc32c(text));
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
        classes: bool,
    ) -> Result<(Self, Vec<String>, Layout), DataError> {
        let rows = Columns::open(paths)?;
        let header = StringRecord::from(rows.columns());
        let layout = Layout::of(&header, wanted);
        let layout = layout.map_err(|why| DataError::bad_path(rows.path(), why))?;
        // Of each row its numbers, and what its target is in words.
        let needed = rows.len() as u64 * (4 * layout.inputs.len() as u64 + 32);
        refuse_large(rows.path(), needed)?;
        let sum = crc32c::crc32c(rows.identity().as_bytes());
        let mut table = Self::empty(Origin::Columns(rows), &layout, classes, sum);
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
            let mut own = layout.inputs.iter().chain([&layout.target]);
            let other = own.find(|(_, place)| cells[*place].is_none());
            if let Some((name, _)) = other {
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

    fn empty(origin: Origin, layout: &Layout, classes: bool, sum: u32) -> Self {
        Self {
            origin,
            columns: layout.inputs.len(),
            x: Vec::new(),
            y: Vec::new(),
            classes,
            sum,
        }
    }

    /// With the numbers of its classes, where it has such.
    fn named(
        mut self,
        labels: &[String],
        known: Option<Vec<String>>,
        layout: Layout,
    ) -> Result<(Self, Option<Vec<String>>, Layout), DataError> {
        if !self.classes {
            return Ok((self, None, layout));
        }
        let names = match known {
            Some(names) => names,
            None => named(labels).map_err(|why| {
                let what = format!("column `{}` {why}", layout.target.0);
                DataError::bad_path(self.origin.path(), what)
            })?,
        };
        self.number(labels, &names, &layout.target.0)?;
        Ok((self, Some(names), layout))
    }

    /// Takes up a row.
    fn row(
        &mut self,
        layout: &Layout,
        record: &StringRecord,
        labels: &mut Vec<String>,
    ) -> Result<(), String> {
        for (name, place) in &layout.inputs {
            self.x.push(number(&record[*place], name, INPUTS)? as f32);
        }
        let (name, place) = &layout.target;
        let cell = &record[*place];
        if self.classes {
            if is_missing(cell) {
                return Err(missing(name));
            }
            labels.push(cell.to_owned());
        } else {
            self.y.push(number(cell, name, TARGETS)?);
        }
        Ok(())
    }

    /// Class names to their numbers.
    fn number(
        &mut self,
        labels: &[String],
        names: &[String],
        column: &str,
    ) -> Result<(), DataError> {
        let numbers = names
            .iter()
            .enumerate()
            .map(|(number, name)| (name.as_str(), number));
        let numbers: HashMap<&str, usize> = numbers.collect();
        for (row, label) in labels.iter().enumerate() {
            let number = numbers.get(label.as_str()).ok_or_else(|| {
                let what = format!(
                    "column `{column}`: there was no class `{label}` in what was trained on; there \
                     were {}",
                    listed(names)
                );
                let place = self.origin.place(row);
                DataError::Bad { place, what }
            })?;
            self.y.push(*number as f64);
        }
        Ok(())
    }
}

/// The classes, in the order of their numbers: numbers by size, names by letters.
fn named(labels: &[String]) -> Result<Vec<String>, String> {
    let mut names = labels.to_vec();
    names.sort_unstable();
    names.dedup();
    let numbers: Option<Vec<f64>> = names.iter().map(|name| name.parse().ok()).collect();
    let Some(numbers) = numbers else {
        return Ok(names);
    };
    if let Some(broken) = numbers.iter().position(|number| number.fract() != 0.0) {
        return Err(format!(
            "has numbers such as {}, and this model tells classes: name the column of the classes \
             with --target, or take a model and a loss for numbers, such as `mlp` with --loss mse",
            names[broken]
        ));
    }
    names.sort_by(|one, other| {
        let number = |name: &String| name.parse::<f64>().unwrap_or_default();
        number(one)
            .total_cmp(&number(other))
            .then_with(|| one.cmp(other))
    });
    Ok(names)
}

impl Source for Table {
    type Item = Pair;

    fn len(&self) -> usize {
        self.origin.rows()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Pair, DataError> {
        let pair = || -> Result<Pair, TorchError> {
            let x = &self.x[index * self.columns..][..self.columns];
            let y = if self.classes {
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
