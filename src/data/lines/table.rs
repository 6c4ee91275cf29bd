//! CSV tables with a header.

use std::path::Path;
use std::sync::Arc;

use csv::ReaderBuilder;
use gpipe_partitioner::words::count;

use super::index::{RowsOfText, Rule};
use crate::disk_file::DiskFile;
use crate::{DataError, Place, Source};

/// Possible cell separators; the first one in the header is used.
pub(crate) const SEPARATORS: [u8; 3] = [b'\t', b';', b','];

/// The rows of a table with a header, as texts by column name.
///
/// `Samples::open` makes batches of numeric tables directly; this source is for any cells.
///
/// ```
/// use gpipe::data::{Csv, Dataset};
///
/// # let path = std::env::temp_dir().join(format!("gpipe-csv-{}.csv", std::process::id()));
/// std::fs::write(&path, "text,stars\n\"good, cheap\",4\nbad,1\n")?;
/// let rows = Dataset::new(Csv::open(&path)?);
/// let pairs = rows.map(|row| Ok((row.text("text")?.len() as i64, row.number("stars")? as f32)));
/// let (lengths, stars) = pairs.batch(2).load()?.next().expect("two rows")?;
/// assert_eq!(Vec::<i64>::try_from(lengths)?, [11, 3]);
/// assert_eq!(Vec::<f32>::try_from(stars)?, [4.0, 1.0]);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug)]
pub struct Csv {
    text: RowsOfText,
    columns: Arc<[String]>,
    separator: u8,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    columns: Arc<[String]>,
    cells: Vec<String>,
}

impl Record {
    /// Returns the cell of a column as text.
    ///
    /// # Errors
    /// There is no such column.
    pub fn text(&self, column: &str) -> anyhow::Result<&str> {
        let place = self.columns.iter().position(|own| own == column);
        let cell = place.and_then(|place| self.cells.get(place));
        cell.map(String::as_str).ok_or_else(|| {
            anyhow::anyhow!(
                "there is no column `{column}`; there are {:?}",
                self.columns
            )
        })
    }

    /// Returns the cell of a column as a number.
    ///
    /// # Errors
    /// There is no such column, or its cell is not a number.
    pub fn number(&self, column: &str) -> anyhow::Result<f64> {
        let cell = self.text(column)?;
        let number = cell.trim().parse();
        number.map_err(|_| anyhow::anyhow!("column `{column}`: `{cell}` is no number"))
    }

    /// Returns all cells, in column order.
    pub fn cells(&self) -> &[String] {
        &self.cells
    }
}

impl Csv {
    /// Opens a table separated by tabs, semicolons or commas, as its header is.
    ///
    /// # Errors
    /// The file cannot be read, has no header or a duplicate column, or has a row of more than 64 MiB.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let separator = separator(path)?;
        let rule = Rule {
            separator: Some(separator),
            blank: false,
        };
        let mut text = RowsOfText::open(path, rule)?;
        if text.rows.is_empty() {
            return Err(DataError::bad_path(
                path,
                "there is no header: the table is empty",
            ));
        }
        let columns = cells(&text, 0, separator)?;
        for (place, column) in columns.iter().enumerate() {
            if columns[..place].contains(column) {
                let what = format!("there are two columns `{column}`: rename one");
                return Err(text.bad(0, what));
            }
        }
        text.rows.remove(0);
        Ok(Self {
            text,
            columns: columns.into(),
            separator,
        })
    }

    /// Returns the names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }
}

/// Returns the first of the separators that occurs in the first line.
fn separator(path: &Path) -> Result<u8, DataError> {
    let file = DiskFile::open(path)?;
    let mut start = vec![0; file.len().min(1 << 16) as usize];
    file.read(&mut start, 0)?;
    let header = start
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let there = |own: &&u8| header.contains(own);
    Ok(SEPARATORS.iter().find(there).copied().unwrap_or(b','))
}

/// Explains that a row's number of cells differs from the header's.
pub(crate) fn other_cells(own: usize, wanted: usize) -> String {
    let mend = if own < wanted {
        "add what is missing (an empty cell is nothing between two separators)"
    } else {
        "put cells with the separator in them in double quotes"
    };
    let are = if own == 1 { "is" } else { "are" };
    format!(
        "there {are} {}, but the header has {wanted}: {mend}",
        count(own, "cell")
    )
}

fn cells(text: &RowsOfText, row: usize, separator: u8) -> Result<Vec<String>, DataError> {
    let bytes = text.read(row)?;
    let mut reader = ReaderBuilder::new()
        .delimiter(separator)
        .has_headers(false)
        .from_reader(&bytes[..]);
    let mut records = reader.records();
    let record = match records.next() {
        Some(Ok(record)) => record,
        Some(Err(error)) if matches!(error.kind(), csv::ErrorKind::Utf8 { .. }) => {
            return Err(text.bad(row, "this is not UTF-8 text: save it as UTF-8"));
        }
        Some(Err(error)) => return Err(text.bad(row, format!("this is no CSV: {error}"))),
        None => return Err(text.bad(row, "there is no cell here")),
    };
    if records.next().is_some() {
        return Err(text.bad(row, "this is no row of CSV: it goes on behind its end"));
    }
    Ok(record.iter().map(str::to_owned).collect())
}

impl Source for Csv {
    type Item = Record;

    fn len(&self) -> usize {
        self.text.rows.len()
    }

    fn get(&self, _: u64, index: usize) -> Result<Record, DataError> {
        let cells = cells(&self.text, index, self.separator)?;
        if cells.len() == self.columns.len() {
            let columns = Arc::clone(&self.columns);
            return Ok(Record { columns, cells });
        }
        let what = other_cells(cells.len(), self.columns.len());
        Err(self.text.bad(index, what))
    }

    fn place(&self, _: u64, index: usize) -> Place {
        self.text.place(index)
    }

    fn identity(&self) -> String {
        let (rows, sum) = (self.len(), self.text.sum());
        let columns = self.columns.len();
        format!("a table of {rows} rows and {columns} columns with checksum {sum:08x}")
    }
}
