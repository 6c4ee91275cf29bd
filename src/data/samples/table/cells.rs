//! Cells of one column, as in the file.

use std::path::Path;

use csv::ReaderBuilder;
#[cfg(feature = "parquet")]
use csv::StringRecord;

#[cfg(not(feature = "parquet"))]
use super::super::kinds::NO_COLUMNS;
use super::super::kinds::{Kind, kind};
use super::layout::find;
use super::text::{self, at, damaged, separator};
use crate::DataError;
#[cfg(feature = "parquet")]
use crate::{Columns, Source as _};

/// Returns the cells of a column, row by row.
///
/// # Errors
/// The table cannot be read, or does not have exactly one such column.
pub fn cells(path: &Path, name: &str) -> Result<Vec<String>, DataError> {
    match kind(path)? {
        Some(Kind::Table) => {}
        Some(Kind::Columns) => return of_columns(path, name),
        _ => {
            let what = format!("this is no table, so it has no column `{name}`");
            return Err(DataError::bad_path(path, what));
        }
    }
    let text = text::read(path)?;
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    let mut reader = ReaderBuilder::new();
    let reader = reader.delimiter(separator(text)).trim(csv::Trim::All);
    let mut reader = reader.from_reader(text);
    let header = reader.headers().map_err(|error| damaged(path, &error))?;
    let place = find(header, name).map_err(|why| at(path, 1, why))?;
    let records = reader.records().map(|record| {
        let record = record.map_err(|error| damaged(path, &error))?;
        Ok(record.get(place).unwrap_or_default().to_owned())
    });
    records.collect()
}

#[cfg(feature = "parquet")]
fn of_columns(path: &Path, name: &str) -> Result<Vec<String>, DataError> {
    let rows = Columns::open([path])?;
    let place = find(&StringRecord::from(rows.columns()), name);
    place.map_err(|why| DataError::bad_path(path, why))?;
    let rows = rows.only(&[name])?;
    let cell = |row: usize| -> Result<String, DataError> {
        let own = rows.shown(row)?.pop().flatten();
        own.ok_or_else(|| DataError::Bad {
            place: rows.place(0, row),
            what: format!("column `{name}` has neither a number nor a text here"),
        })
    };
    (0..rows.len()).map(cell).collect()
}

#[cfg(not(feature = "parquet"))]
fn of_columns(path: &Path, _: &str) -> Result<Vec<String>, DataError> {
    Err(DataError::bad_path(path, NO_COLUMNS))
}
