//! Tables of text: CSV, with a header.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use csv::{ReaderBuilder, StringRecord};
use gpipe_partitioner::Bytes;
use tch::{Device, Kind, Tensor};

use super::found::{Found, Labels};
use super::scaling::Usual;
use super::{Pair, SampleOptions};
use crate::data::lines::SEPARATORS;
use crate::data::{DataError, Place, Source};
use crate::memory::room_on;
use crate::{TorchError, files};

/// What stands for there being no value.
const MISSING: [&str; 7] = ["", "?", "na", "n/a", "nan", "null", "none"];

/// The rows of a table in memory: numbers in, one target each.
#[derive(Debug)]
struct Table {
    path: PathBuf,
    columns: usize,
    /// Row after row.
    x: Vec<f32>,
    /// Numbers, or the numbers of classes.
    y: Vec<f64>,
    classes: bool,
    /// Of each row.
    lines: Vec<u64>,
    sum: u32,
}

/// What columns are what, and the names of the classes.
struct Layout {
    /// Names of the inputs' columns, and where they are.
    inputs: Vec<(String, usize)>,
    target: (String, usize),
}

pub(super) fn found(
    path: &Path,
    test: Option<&Path>,
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
    let wanted = (columns, target);
    let (train, names, layout) = Table::read(path, &wanted, options.classes, known)?;
    let columns: Vec<String> = layout.inputs.into_iter().map(|(name, _)| name).collect();
    let target = layout.target.0;
    let names = names.filter(|_| options.classes);
    let test = test.map(|test| {
        let same = (Some(columns.clone()), Some(target.clone()));
        let read = Table::read(test, &same, options.classes, names.clone())?;
        Ok::<_, DataError>(read.0)
    });
    let shape = if options.classes { vec![] } else { vec![1] };
    Ok(Found {
        input: vec![columns.len() as i64],
        target: shape,
        labels: match names {
            Some(names) => Labels::Named(names),
            None => Labels::Numbers,
        },
        usual: Usual::Standard,
        about: "rows of a table",
        columns,
        column: Some(target),
        ..Found::new(train, test.transpose()?)
    })
}

/// Names of the columns of inputs, and of the target, where they are known.
type Wanted = (Option<Vec<String>>, Option<String>);

impl Table {
    fn read(
        path: &Path,
        wanted: &Wanted,
        classes: bool,
        known: Option<Vec<String>>,
    ) -> Result<(Self, Option<Vec<String>>, Layout), DataError> {
        let text = read(path)?;
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        let mut reader = ReaderBuilder::new()
            .delimiter(separator(text))
            .trim(csv::Trim::All)
            .from_reader(text);
        let header = reader.headers().map_err(|error| damaged(path, &error))?;
        let layout = Layout::of(header, wanted).map_err(|why| at(path, 1, why))?;
        let mut table = Self {
            path: path.to_owned(),
            columns: layout.inputs.len(),
            x: Vec::new(),
            y: Vec::new(),
            classes,
            lines: Vec::new(),
            sum: crc32c::crc32c(text),
        };
        let mut labels = Vec::new();
        for record in reader.records() {
            let record = record.map_err(|error| damaged(path, &error))?;
            let line = record.position().map_or(1, |start| line(text, start));
            let row = table.row(&layout, &record, &mut labels);
            row.map_err(|why| at(path, line, why))?;
            table.lines.push(line);
        }
        if table.lines.is_empty() {
            return Err(at(path, 1, "there is no row below the header".to_owned()));
        }
        if !classes {
            return Ok((table, None, layout));
        }
        let names = match known {
            Some(names) => names,
            None => named(&labels).map_err(|why| {
                DataError::bad_path(path, format!("column `{}` {why}", layout.target.0))
            })?,
        };
        table.number(&labels, &names, &layout.target.0)?;
        Ok((table, Some(names), layout))
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
            if MISSING.contains(&cell.to_lowercase().as_str()) {
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
        for (label, &line) in labels.iter().zip(&self.lines) {
            let number = numbers.get(label.as_str()).ok_or_else(|| {
                let what = format!(
                    "column `{column}`: there was no class `{label}` in what was trained on; there \
                     were {}",
                    listed(names)
                );
                at(&self.path, line, what)
            })?;
            self.y.push(*number as f64);
        }
        Ok(())
    }
}

impl Layout {
    fn of(header: &StringRecord, (columns, target): &Wanted) -> Result<Self, String> {
        let all: Vec<&str> = header.iter().collect();
        let find = |name: &str| {
            let mut places = all.iter().enumerate().filter(|(_, own)| **own == name);
            match (places.next(), places.next()) {
                (Some((place, _)), None) => Ok((name.to_owned(), place)),
                (Some(_), Some(_)) => Err(format!("there are two columns `{name}`: rename one")),
                (None, _) => Err(format!(
                    "there is no column `{name}`; there are {}",
                    listed(&all)
                )),
            }
        };
        if all.is_empty() {
            return Err("there is no header: the table is empty".to_owned());
        }
        if all.iter().all(|name| name.parse::<f64>().is_ok()) {
            return Err(format!(
                "this is to be the names of the columns, but it is numbers ({}): put a header above \
                 them",
                listed(&all)
            ));
        }
        if let Some(place) = all.iter().position(|name| name.is_empty()) {
            return Err(format!("column {} has no name", place + 1));
        }
        let last = all.last().copied().unwrap_or_default();
        let target = find(target.as_deref().unwrap_or(last))?;
        let inputs: Vec<_> = if let Some(columns) = columns {
            let own = columns.iter().map(|name| find(name));
            own.collect::<Result<_, _>>()?
        } else {
            let others = all.iter().enumerate();
            let others = others.filter(|(place, _)| *place != target.1);
            let own = others.map(|(_, name)| find(name));
            own.collect::<Result<_, _>>()?
        };
        if inputs.is_empty() {
            return Err(format!(
                "beside the target `{}` there is no column",
                target.0
            ));
        }
        Ok(Self { inputs, target })
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

/// What to do about an input that is a text.
const INPUTS: &str = "inputs are numbers; leave the column out, or make a column of 0 and 1 for each \
                      of its values";
/// The same of a target.
const TARGETS: &str = "this model learns numbers: name the column that has them with --target, or \
                       take a model and a loss for classes";

/// The number in a cell; `instead` is what to do where it is a text.
fn number(cell: &str, column: &str, instead: &str) -> Result<f64, String> {
    if MISSING.contains(&cell.to_lowercase().as_str()) {
        return Err(missing(column));
    }
    match cell.parse::<f64>() {
        Ok(number) if (number as f32).is_finite() => Ok(number),
        Ok(_) => Err(format!(
            "column `{column}`: {cell} is not finite in single precision"
        )),
        Err(_) => Err(format!(
            "column `{column}`: `{cell}` is no number: {instead}"
        )),
    }
}

fn missing(column: &str) -> String {
    format!("column `{column}` has no value: fill it in, or leave out the row or the column")
}

/// The first few of some names.
fn listed(names: &[impl AsRef<str>]) -> String {
    const MOST: usize = 12;
    let few = names
        .iter()
        .take(MOST)
        .map(|name| format!("`{}`", name.as_ref()));
    let few = few.collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MOST) {
        Some(more) if more > 0 => format!("{few} and {more} more"),
        _ => few,
    }
}

fn at(path: &Path, line: u64, what: String) -> DataError {
    let path = path.to_owned();
    DataError::Bad {
        place: Place::Line { path, line },
        what,
    }
}

fn damaged(path: &Path, error: &csv::Error) -> DataError {
    let line = error.position().map_or(1, csv::Position::line);
    let what = match error.kind() {
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => format!(
            "there are {len} cells, but the header has {expected_len}: put cells with the separator \
             in them in double quotes"
        ),
        csv::ErrorKind::Utf8 { .. } => "this is not UTF-8 text".to_owned(),
        _ => format!("this is no CSV: {error}"),
    };
    at(path, line, what)
}

/// The line of what begins there, behind lines that are empty.
fn line(text: &[u8], start: &csv::Position) -> u64 {
    let rest = text.get(start.byte() as usize..).unwrap_or_default();
    let empty = rest.iter().take_while(|byte| matches!(byte, b'\n' | b'\r'));
    start.line() + empty.filter(|byte| **byte == b'\n').count() as u64
}

/// All of a file, if there is memory for its numbers.
fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let failed = |source| DataError::read(path, source);
    let size = files::open(path)
        .and_then(|file| file.metadata())
        .map_err(failed)?
        .len();
    // The text, and at most a number of 4 bytes for every two of it.
    let needed = size.saturating_mul(3);
    if let Ok((free, _)) = room_on(Device::Cpu)
        && needed > free.0
    {
        return Err(DataError::bad_path(
            path,
            format!(
                "a table is read into memory, which takes {}, and {free} are free: save it as \
                 safetensors or .npy, which are read row by row",
                Bytes(needed)
            ),
        ));
    }
    files::read(path).map_err(failed)
}

fn separator(text: &[u8]) -> u8 {
    let header = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let there = |own: &&u8| header.contains(own);
    SEPARATORS.iter().find(there).copied().unwrap_or(b',')
}

impl Source for Table {
    type Item = Pair;

    fn len(&self) -> usize {
        self.lines.len()
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Pair, DataError> {
        let pair = || -> Result<Pair, TorchError> {
            let x = &self.x[index * self.columns..][..self.columns];
            let y = if self.classes {
                Tensor::from(self.y[index] as i64)
            } else {
                Tensor::f_from_slice(&[self.y[index]])?.f_to_kind(Kind::Float)?
            };
            Ok((Tensor::f_from_slice(x)?, y))
        };
        pair().map_err(|error| DataError::Item {
            place: self.place(epoch, index),
            source: error.into(),
        })
    }

    fn place(&self, _: u64, index: usize) -> Place {
        let (path, line) = (self.path.clone(), self.lines[index]);
        Place::Line { path, line }
    }

    fn identity(&self) -> String {
        let (rows, sum) = (self.lines.len(), self.sum);
        format!(
            "a table of {rows} rows and {} columns with checksum {sum:08x}",
            self.columns + 1
        )
    }
}
