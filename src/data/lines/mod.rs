//! Texts with an item per row: lines, JSON Lines, CSV.
//!
//! Opening scans the file once to find the rows, which takes 16 bytes per row; each row is then read on
//! demand, on the loader's workers. A text may be larger than memory.

mod index;
mod table;

use std::path::Path;

use serde::de::DeserializeOwned;

use super::{DataError, Dataset, Place, Source};
use index::{RowsOfText, Rule};

pub(super) use index::{OPEN_QUOTE, open_quote};
pub use table::{Csv, Record};
pub(super) use table::{SEPARATORS, other_cells};

/// The lines of a text as items, without line endings.
///
/// ```
/// use gpipe::data::{Dataset, Lines};
///
/// # let path = std::env::temp_dir().join(format!("gpipe-lines-{}.txt", std::process::id()));
/// std::fs::write(&path, "one\ntwo\n")?;
/// let lengths = Dataset::new(Lines::open(&path)?).map(|line| Ok(line.len() as i64));
/// assert_eq!(Vec::<i64>::try_from(lengths.batch(2).load()?.next().expect("two lines")?)?, [3, 3]);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug)]
pub struct Lines {
    text: RowsOfText,
}

impl Lines {
    /// Opens a text; each line is an item, including empty ones.
    ///
    /// # Errors
    /// The file cannot be read, or has a line of more than 64 MiB.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        Self::by(path, true)
    }

    /// Opens a file of JSON values, one per line, and decodes each on the loader's workers: to
    /// `serde_json::Value`, or to a type that implements `serde::Deserialize`. Blank lines are skipped.
    ///
    /// ```
    /// use gpipe::data::Lines;
    ///
    /// # let path = std::env::temp_dir().join(format!("gpipe-json-{}.jsonl", std::process::id()));
    /// std::fs::write(&path, "[1, 2]\n[3, 4]\n")?;
    /// let rows = Lines::json::<Vec<i64>>(&path)?;
    /// assert_eq!(rows.batch(2).load()?.next().expect("two lines")?.size(), [2, 2]);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Lines::open`]. An invalid value is an error with its line when it is read.
    pub fn json<T>(path: &Path) -> Result<Dataset<impl Source<Item = T> + use<T>>, DataError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let lines = Dataset::new(Self::by(path, false)?);
        Ok(lines.map(|line| {
            serde_json::from_str(&line)
                .map_err(|error| anyhow::anyhow!("this is no such JSON: {error}"))
        }))
    }

    fn by(path: &Path, blank: bool) -> Result<Self, DataError> {
        let separator = None;
        let text = RowsOfText::open(path, Rule { separator, blank })?;
        Ok(Self { text })
    }
}

impl Source for Lines {
    type Item = String;

    fn len(&self) -> usize {
        self.text.rows.len()
    }

    fn get(&self, _: u64, index: usize) -> Result<String, DataError> {
        let line = String::from_utf8(self.text.read(index)?);
        line.map_err(|_| {
            self.text
                .bad(index, "this is not UTF-8 text: save it as UTF-8")
        })
    }

    fn place(&self, _: u64, index: usize) -> Place {
        self.text.place(index)
    }

    fn identity(&self) -> String {
        let (lines, sum) = (self.len(), self.text.sum());
        format!("{lines} lines with checksum {sum:08x}")
    }
}
