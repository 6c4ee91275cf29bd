//! Reads the rows of a table.

use std::path::{Path, PathBuf};

use csv::{ReaderBuilder, StringRecord};

use super::cell::{TARGETS, is_missing, no_input, no_target, number, unknown};
use super::layout::{Input, Layout, Wanted};
use super::origin::Origin;
use super::search::Search;
#[cfg(feature = "parquet")]
use super::text::refuse_large;
use super::text::{self, at, check_names, damaged, line, separator};
use super::{Learns, Table};
use crate::DataError;
use crate::samples::Missing;
#[cfg(not(feature = "parquet"))]
use crate::samples::kinds::NO_COLUMNS;
use crate::samples::kinds::has_columns;
#[cfg(feature = "parquet")]
use crate::{Columns, Source as _};

impl Table {
    /// Reads the rows; returns them with the class names and the layout.
    pub(super) fn read(
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
            // Without reading the header first, later errors have no line.
            let header = reader.headers();
            let header = header.map_err(|error| damaged(path, &error))?.clone();
            Ok::<_, DataError>((reader, header))
        };
        let (mut reader, header) = begin()?;
        check_names(&header).map_err(|why| at(path, 1, why))?;
        let mut layout = Layout::of(&header, wanted).map_err(|why| at(path, 1, why))?;
        if wanted.known.is_none() {
            let mut search = Search::new(&layout, wanted.missing == Missing::Fill);
            for record in begin()?.0.records() {
                if !search.row(&record.map_err(|error| damaged(path, &error))?) {
                    break;
                }
            }
            let forms = search.forms().map_err(|why| at(path, 1, why))?;
            layout.take(forms);
        }
        let origin = Origin::Text {
            path: path.to_owned(),
            lines: Vec::new(),
        };
        let mut table = Self::empty(
            origin,
            &layout,
            (learns, wanted.missing),
            crc32c::crc32c(text),
        );
        let (mut labels, mut lines) = (Vec::new(), Vec::new());
        for record in reader.records() {
            let record = record.map_err(|error| damaged(path, &error))?;
            let line = record.position().map_or(1, |start| line(text, start));
            let row = table.row(&layout, &record, &mut labels);
            let refused = learns != Learns::Nothing && wanted.missing == Missing::Refuse;
            let taken = match row {
                // Report all such columns at once, so that the file need be fixed only once.
                Err(_) if refused && has_gap(&layout, &record) => {
                    let why = gaps(&layout, begin()?.0.records().flatten());
                    return Err(at(path, line, why));
                }
                row => row.map_err(|why| at(path, line, why))?,
            };
            if taken {
                lines.push(line);
            }
        }
        if lines.is_empty() {
            let none = match table.left_out {
                0 => "there is no row below the header",
                _ => "all rows are left out, as each has a cell without a value",
            };
            return Err(at(path, 1, none.to_owned()));
        }
        let path = path.to_owned();
        table.origin = Origin::Text { path, lines };
        Ok((table, labels, layout))
    }

    /// Reads the rows of columnar files.
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
        if wanted.known.is_none() {
            let mut search = Search::new(&layout, wanted.missing == Missing::Fill);
            for row in 0..rows.len() {
                let cells = rows.shown(row)?.into_iter().map(Option::unwrap_or_default);
                if !search.row(&cells.collect()) {
                    break;
                }
            }
            let forms = search.forms().map_err(wrong)?;
            layout.take(forms);
        }
        // Per row: its numbers, and its target as text.
        let needed = rows.len() as u64 * (8 * layout.width() as u64 + 32);
        refuse_large(rows.path(), needed)?;
        let sum = crc32c::crc32c(rows.identity().as_bytes());
        let origin = Origin::Columns {
            own: rows,
            rows: Vec::new(),
        };
        let mut table = Self::empty(origin, &layout, (learns, wanted.missing), sum);
        let (mut labels, mut taken) = (Vec::new(), Vec::new());
        while let Origin::Columns { own, .. } = &table.origin {
            let row = taken.len() + table.left_out;
            if row == own.len() {
                break;
            }
            let place = own.place(0, row);
            let cells = own.shown(row)?;
            let inputs = layout.inputs.iter().map(|own| (&own.name, own.place));
            let mut used = inputs.chain([(&layout.target.0, layout.target.1)]);
            if let Some((name, _)) = used.find(|(_, place)| cells[*place].is_none()) {
                let what = format!(
                    "column `{name}` has neither a number nor a text here: leave it out with \
                     --drop-columns, or make arrays of it"
                );
                return Err(DataError::Bad { place, what });
            }
            let cells = cells.into_iter().map(Option::unwrap_or_default);
            let record: StringRecord = cells.collect();
            let own = table.row(&layout, &record, &mut labels);
            if own.map_err(|what| DataError::Bad { place, what })? {
                taken.push(row);
            }
        }
        if let Origin::Columns { rows, .. } = &mut table.origin {
            *rows = taken;
        }
        Ok((table, labels, layout))
    }

    fn empty(
        origin: Origin,
        layout: &Layout,
        (learns, missing): (Learns, Missing),
        sum: u32,
    ) -> Self {
        Self {
            origin,
            columns: layout.inputs.len(),
            width: layout.width(),
            x: Vec::new(),
            y: Vec::new(),
            learns,
            missing,
            sum,
            left_out: 0,
        }
    }

    /// Adds a row. *Returns* false if it is left out for a missing cell.
    fn row(
        &mut self,
        layout: &Layout,
        record: &StringRecord,
        labels: &mut Vec<String>,
    ) -> Result<bool, String> {
        let (target, place) = &layout.target;
        let answer = &record[*place];
        let known = self.learns != Learns::Nothing;
        let mut used = layout.inputs.iter().map(|own| &record[own.place]);
        let gap = used.any(is_missing) || (known && is_missing(answer));
        let nothing_to_learn = known && is_missing(answer) && self.missing == Missing::Fill;
        if (gap && self.missing == Missing::Drop) || nothing_to_learn {
            self.left_out += 1;
            return Ok(false);
        }
        for Input {
            name,
            place,
            column,
        } in &layout.inputs
        {
            match &record[*place] {
                cell if !is_missing(cell) => column.take(cell, (name, known), &mut self.x)?,
                _ if self.missing == Missing::Fill => column.take_nothing(&mut self.x),
                _ if known => return Err(no_input(&[(name, 1)])),
                _ => return Err(unknown(name)),
            }
        }
        match self.learns {
            Learns::Nothing => self.y.push(0.0),
            _ if is_missing(answer) => return Err(no_target(target)),
            Learns::Classes => labels.push(answer.to_owned()),
            Learns::Numbers => self.y.push(number(answer, target, TARGETS)?),
        }
        Ok(true)
    }
}

/// Whether an input of the row is missing.
fn has_gap(layout: &Layout, record: &StringRecord) -> bool {
    let mut cells = layout.inputs.iter().map(|own| &record[own.place]);
    cells.any(is_missing)
}

/// Describes all missing inputs in these rows.
fn gaps(layout: &Layout, rows: impl Iterator<Item = StringRecord>) -> String {
    let mut counts = vec![0; layout.inputs.len()];
    for row in rows {
        for (count, input) in counts.iter_mut().zip(&layout.inputs) {
            *count += usize::from(row.get(input.place).is_some_and(is_missing));
        }
    }
    let names = layout.inputs.iter().map(|own| own.name.as_str());
    let all: Vec<(&str, usize)> = names.zip(counts).filter(|(_, rows)| *rows > 0).collect();
    no_input(&all)
}
