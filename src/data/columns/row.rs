//! Rows of columnar tables.

use std::sync::Arc;

use anyhow::{anyhow, bail};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StructArray};

use super::cell::{Cell, cell, moment};

/// A row of a columnar table. Columns within structures are named with a dot: `image.bytes`.
///
/// Every method with a column name fails if there is no such column, or if its value in this row is
/// missing or of another type.
#[derive(Debug, Clone)]
pub struct ColumnRow {
    batch: Arc<RecordBatch>,
    row: usize,
}

impl ColumnRow {
    pub(super) fn new((batch, row): (Arc<RecordBatch>, usize)) -> Self {
        Self { batch, row }
    }

    /// Returns an integer; booleans are 1 and 0.
    pub fn int(&self, column: &str) -> anyhow::Result<i64> {
        match self.cell(column)? {
            Cell::Whole(number) => Ok(number),
            other => Err(wrong(column, &other, "a whole number")),
        }
    }

    /// Returns a number.
    pub fn number(&self, column: &str) -> anyhow::Result<f64> {
        match self.cell(column)? {
            Cell::Whole(number) => Ok(number as f64),
            Cell::Number(number) => Ok(number),
            other => Err(wrong(column, &other, "a number")),
        }
    }

    /// Returns a text.
    pub fn text(&self, column: &str) -> anyhow::Result<&str> {
        match self.cell(column)? {
            Cell::Text(text) => Ok(text),
            other => Err(wrong(column, &other, "a text")),
        }
    }

    /// Returns bytes, or those of a text.
    pub fn bytes(&self, column: &str) -> anyhow::Result<&[u8]> {
        match self.cell(column)? {
            Cell::Bytes(bytes) => Ok(bytes),
            Cell::Text(text) => Ok(text.as_bytes()),
            other => Err(wrong(column, &other, "bytes")),
        }
    }

    /// Returns the integers of a list.
    pub fn ints(&self, column: &str) -> anyhow::Result<Vec<i64>> {
        let list = self.list(column)?;
        if let Some(own) = list.as_primitive_opt::<Int64Type>()
            && list.null_count() == 0
        {
            return Ok(own.values().to_vec());
        }
        let all = (0..list.len()).map(|place| match cell(&list, place) {
            Cell::Whole(number) => Ok(number),
            other => Err(within(column, place, &other, "a whole number")),
        });
        all.collect()
    }

    /// Returns the numbers of a list.
    pub fn floats(&self, column: &str) -> anyhow::Result<Vec<f32>> {
        let list = self.list(column)?;
        if let Some(own) = list.as_primitive_opt::<Float32Type>()
            && list.null_count() == 0
        {
            return Ok(own.values().to_vec());
        }
        let all = (0..list.len()).map(|place| match cell(&list, place) {
            Cell::Whole(number) => Ok(number as f32),
            Cell::Number(number) => Ok(number as f32),
            other => Err(within(column, place, &other, "a number")),
        });
        all.collect()
    }

    /// Returns the texts of a list.
    pub fn texts(&self, column: &str) -> anyhow::Result<Vec<String>> {
        let list = self.list(column)?;
        let all = (0..list.len()).map(|place| match cell(&list, place) {
            Cell::Text(text) => Ok(text.to_owned()),
            other => Err(within(column, place, &other, "a text")),
        });
        all.collect()
    }

    /// Whether the value is missing.
    pub fn is_null(&self, column: &str) -> anyhow::Result<bool> {
        Ok(matches!(self.cell(column)?, Cell::Null))
    }

    fn list(&self, column: &str) -> anyhow::Result<ArrayRef> {
        match self.cell(column)? {
            Cell::List(list) => Ok(list),
            other => Err(wrong(column, &other, "a list")),
        }
    }

    fn cell(&self, column: &str) -> anyhow::Result<Cell<'_>> {
        // A column with a dot in its name takes precedence over one within a structure.
        if let Some(array) = self.batch.column_by_name(column) {
            return Ok(cell(array, self.row));
        }
        let mut names = column.split('.');
        let first = names.next().unwrap_or_default();
        let mut array = self.batch.column_by_name(first);
        for name in names {
            let own = array.and_then(|own| own.as_any().downcast_ref::<StructArray>());
            if own.is_some_and(|own| own.is_null(self.row)) {
                return Ok(Cell::Null);
            }
            array = own.and_then(|own| own.column_by_name(name));
        }
        let Some(array) = array else {
            let schema = self.batch.schema();
            let there: Vec<&String> = schema.fields().iter().map(|own| own.name()).collect();
            bail!("there is no column `{column}`; there are {there:?}");
        };
        Ok(cell(array, self.row))
    }

    /// Returns a number, text or date in the format of text tables, by column index.
    pub(super) fn shown(&self, place: usize) -> Option<String> {
        match cell(self.batch.column(place), self.row) {
            Cell::Null => Some(String::new()),
            Cell::Whole(number) => Some(number.to_string()),
            Cell::Number(number) => Some(number.to_string()),
            Cell::Text(text) => Some(text.to_owned()),
            _ => moment(self.batch.column(place), self.row),
        }
    }
}

fn wrong(column: &str, found: &Cell<'_>, wanted: &str) -> anyhow::Error {
    anyhow!("column `{column}` has {}, not {wanted}", found.is())
}

fn within(column: &str, place: usize, found: &Cell<'_>, wanted: &str) -> anyhow::Error {
    let found = found.is();
    anyhow!("column `{column}` has {found} at place {place} of its list, not {wanted}")
}
