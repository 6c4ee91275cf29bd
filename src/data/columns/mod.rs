//! Columnar tables: Parquet, and Arrow's files and streams.
//!
//! Rows are decoded in the groups in which they were written: the first request for a row decodes its
//! group, and recently used groups are cached for all workers.

mod arrow_file;
mod cell;
mod kept;
mod pages;
mod parquet_file;
mod row;
mod unit;

use std::fmt;
use std::path::Path;

use arrow_schema::{FieldRef, SchemaRef};

use super::disk_file::DiskFile;
use super::magic::{self, Magic};
use super::{DataError, Place, Source};
use arrow_file::Arrow;
use kept::Kept;
use parquet_file::Parquet;
use unit::Unit;

pub use row::ColumnRow;

/// The rows of Parquet files, or of Arrow's files (`.arrow`, `.feather`) and streams (as of Hugging
/// Face's `datasets`), in file order. The type of a file is detected by its beginning.
///
/// Opening reads the metadata of row groups; a group (a record batch of an Arrow file) is decoded when
/// one of its rows is requested. Up to 256 MiB of decoded groups are cached. So read rows in order, or
/// `shuffle` them within a window of a few groups; for a full shuffle, write small groups, or put a
/// `cache_file` before it.
///
/// ```no_run
/// use gpipe::data::{Columns, Dataset};
///
/// let rows = Columns::open(["train-0.parquet", "train-1.parquet"])?.only(&["tokens", "label"])?;
/// let pairs = Dataset::new(rows).map(|row| Ok((row.ints("tokens")?, row.int("label")?)));
/// let batches = pairs.shuffle(10_000, 7).batch(32).workers(2);
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct Columns {
    files: Vec<Table>,
    /// Index of each unit's first row, and the number of all rows.
    firsts: Vec<usize>,
    /// File of each unit, and its index in the file.
    units: Vec<(usize, usize)>,
    /// Indices of the columns to read.
    wanted: Vec<usize>,
    kept: Kept,
}

impl fmt::Debug for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Columns")
            .field("columns", &self.columns())
            .field("rows", &self.len())
            .finish_non_exhaustive()
    }
}

enum Table {
    Parquet(Parquet),
    Arrow(Arrow),
}

impl Table {
    fn open(path: &Path) -> Result<Self, DataError> {
        magic::refuse_other(path, &[Magic::Columns])?;
        let file = DiskFile::open(path)?;
        let mut start = vec![0; file.len().min(8) as usize];
        file.read(&mut start, 0)?;
        if start.starts_with(parquet_file::MAGIC) {
            return Ok(Self::Parquet(Parquet::open(file)?));
        }
        let stream = start.starts_with(arrow_file::MESSAGE);
        if stream || start.starts_with(arrow_file::MAGIC) {
            return Ok(Self::Arrow(Arrow::open(file, stream)?));
        }
        let what = "this is neither a Parquet file nor one of Arrow: it does not begin as these do";
        Err(DataError::bad(path, 0, what))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Parquet(own) => own.path(),
            Self::Arrow(own) => own.path(),
        }
    }

    fn schema(&self) -> &SchemaRef {
        match self {
            Self::Parquet(own) => own.schema(),
            Self::Arrow(own) => own.schema(),
        }
    }

    fn rows(&self) -> Vec<i64> {
        match self {
            Self::Parquet(own) => own.rows(),
            Self::Arrow(own) => own.rows().to_vec(),
        }
    }

    fn sum(&self) -> u32 {
        match self {
            Self::Parquet(own) => own.sum,
            Self::Arrow(own) => own.sum,
        }
    }

    fn read(&self, unit: usize, columns: &[usize]) -> Result<Result<Unit, String>, DataError> {
        match self {
            Self::Parquet(own) => own.read(unit, columns),
            Self::Arrow(own) => own.read(unit, columns),
        }
    }
}

impl Columns {
    /// Opens files with equal columns.
    ///
    /// # Errors
    /// A file cannot be read, has another format or is damaged, columns differ, or there are no rows.
    pub fn open(paths: impl IntoIterator<Item: AsRef<Path>>) -> Result<Self, DataError> {
        let (mut files, mut units, mut firsts) = (Vec::<Table>::new(), Vec::new(), vec![0_usize]);
        for path in paths {
            let path = path.as_ref();
            let table = Table::open(path)?;
            if let Some(first) = files.first() {
                check_same(first, &table)?;
            }
            for (number, rows) in table.rows().into_iter().enumerate() {
                let last = firsts[firsts.len() - 1];
                let rows = usize::try_from(rows).ok();
                let next = rows.and_then(|rows| last.checked_add(rows));
                firsts.push(next.ok_or_else(|| {
                    let what =
                        format!("group {number} is said to have a number of rows that is none");
                    DataError::bad_path(path, what)
                })?);
                units.push((files.len(), number));
            }
            files.push(table);
        }
        if firsts[units.len()] == 0 {
            let what = match files.first() {
                None => "no Parquet file was named".to_owned(),
                Some(first) => format!(
                    "{} and {} other files have no row",
                    first.path().display(),
                    files.len() - 1
                ),
            };
            return Err(DataError::Settings(what));
        }
        let wanted = (0..files[0].schema().fields().len()).collect();
        Ok(Self {
            files,
            firsts,
            units,
            wanted,
            kept: Kept::default(),
        })
    }

    /// Reads only these columns: others of a Parquet file are not even read from the disk.
    ///
    /// # Errors
    /// A column does not exist; the error lists the existing ones.
    pub fn only(mut self, columns: &[&str]) -> Result<Self, DataError> {
        let schema = self.files[0].schema();
        let mut wanted = columns
            .iter()
            .map(|column| {
                schema.index_of(column).map_err(|_| {
                    let there: Vec<&str> = self.columns();
                    let what = format!("there is no column `{column}`; there are {there:?}");
                    DataError::Settings(what)
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        wanted.sort_unstable();
        wanted.dedup();
        self.wanted = wanted;
        self.kept = Kept::default();
        Ok(self)
    }

    /// Returns the names of the columns to read.
    pub fn columns(&self) -> Vec<&str> {
        let fields = self.files[0].schema().fields();
        let own = self.wanted.iter().map(|place| fields[*place].name());
        own.map(String::as_str).collect()
    }

    /// Returns the first file.
    pub(super) fn path(&self) -> &Path {
        self.files[0].path()
    }

    /// Returns the unit of a row.
    fn find(&self, row: usize) -> usize {
        self.firsts.partition_point(|&first| first <= row) - 1
    }

    /// Returns a row's file, and its index in the file.
    fn row_of(&self, row: usize) -> (&Path, usize) {
        let (file, _) = self.units[self.find(row)];
        let first = self.units.partition_point(|own| own.0 < file);
        (self.files[file].path(), row - self.firsts[first])
    }

    fn unit(&self, unit: usize) -> Result<Result<Unit, String>, DataError> {
        self.kept.get(unit, self.units.len(), |unit| {
            let (file, number) = self.units[unit];
            let read = self.files[file].read(number, &self.wanted)?;
            let wanted = self.firsts[unit + 1] - self.firsts[unit];
            Ok(read.and_then(|own| match own.rows() {
                rows if rows == wanted => Ok(own),
                rows => Err(format!("it has {rows} rows and says that it has {wanted}")),
            }))
        })
    }

    /// Returns the cells of a row as text; `None` for columns without numbers or texts.
    pub(super) fn shown(&self, row: usize) -> Result<Vec<Option<String>>, DataError> {
        let own = self.get(0, row)?;
        Ok((0..self.wanted.len())
            .map(|place| own.shown(place))
            .collect())
    }
}

/// Checks that a file's columns equal those of the first file.
fn check_same(first: &Table, other: &Table) -> Result<(), DataError> {
    let kinds = |table: &Table| -> Vec<String> {
        let fields = table.schema().fields();
        let kind = |field: &FieldRef| format!("{} {}", field.name(), field.data_type());
        fields.iter().map(kind).collect()
    };
    let (wanted, own) = (kinds(first), kinds(other));
    if wanted == own {
        return Ok(());
    }
    let what = format!(
        "its columns are {own:?}, and those of {} {wanted:?}",
        first.path().display()
    );
    Err(DataError::bad_path(other.path(), what))
}

impl Source for Columns {
    type Item = ColumnRow;

    fn len(&self) -> usize {
        self.firsts[self.units.len()]
    }

    fn get(&self, epoch: u64, index: usize) -> Result<ColumnRow, DataError> {
        let unit = self.find(index);
        match self.unit(unit)? {
            Ok(own) => Ok(ColumnRow::new(own.row(index - self.firsts[unit]))),
            Err(why) => Err(DataError::Bad {
                place: self.place(epoch, index),
                what: format!("group {} is damaged: {why}", self.units[unit].1),
            }),
        }
    }

    fn place(&self, _: u64, index: usize) -> Place {
        let (path, row) = self.row_of(index);
        let path = path.to_owned();
        Place::Row { path, row }
    }

    fn identity(&self) -> String {
        let sums = self.files.iter().map(|file| file.sum().to_le_bytes());
        let sum = sums.fold(0, |all, sum| crc32c::crc32c_append(all, &sum));
        let (rows, files) = (self.len(), self.files.len());
        let columns = self.wanted.len();
        format!("{rows} rows of {columns} columns in {files} files with checksum {sum:08x}")
    }
}
