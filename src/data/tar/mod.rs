//! WebDataset's tar shards, whose files are parts of items.

mod entries;

use std::collections::BTreeMap;
use std::path::Path;

use gpipe_partitioner::words::listed;

use super::disk_file::DiskFile;
use super::{DataError, Place, Source};
use entries::{Entry, entries};

/// Size limit of a part read into memory.
const MOST: u64 = 1 << 31;

/// The items of WebDataset's tar shards, in file order.
///
/// Consecutive files with the same name up to the first dot after the last slash are one item:
/// `n01/0042.JPG` and `n01/0042.cls` are the parts `jpg` and `cls` of `n01/0042`. Opening reads the
/// headers; parts are read on demand, by any worker, in any order.
///
/// ```no_run
/// use gpipe::data::{Dataset, Tars};
///
/// let tars = Tars::open(["train-000.tar", "train-001.tar"])?;
/// let pairs = Dataset::new(tars).map(|item| {
///     let label: i64 = std::str::from_utf8(item.part("cls")?)?.trim().parse()?;
///     Ok((item.part("jpg")?.len() as i64, label))
/// });
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug)]
pub struct Tars {
    files: Vec<DiskFile>,
    items: Vec<Item>,
    sum: u32,
}

/// Location of an item.
#[derive(Debug)]
struct Item {
    file: usize,
    key: String,
    parts: Vec<(String, u64, u64)>,
}

/// An item of a tar file: its name, and the contents of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarItem {
    /// Common name of its parts, with the folder.
    pub key: String,
    /// The parts by the lowercase extension after the first dot, as in WebDataset.
    pub parts: BTreeMap<String, Vec<u8>>,
}

impl TarItem {
    /// Returns the contents of a part; the name is case-insensitive.
    ///
    /// # Errors
    /// There is no such part.
    pub fn part(&self, name: &str) -> anyhow::Result<&[u8]> {
        let part = self.parts.get(&name.to_lowercase());
        let part = part.map(Vec::as_slice);
        part.ok_or_else(|| {
            let there = listed(self.parts.keys().map(String::as_str));
            anyhow::anyhow!("`{}` has no part `{name}`; there are {there}", self.key)
        })
    }
}

impl Tars {
    /// Opens files.
    ///
    /// # Errors
    /// A file cannot be read, is not a tar file, is damaged, or has a duplicate part (the error gives
    /// file and offset); or there are no items.
    pub fn open(paths: impl IntoIterator<Item: AsRef<Path>>) -> Result<Self, DataError> {
        let (mut files, mut items, mut sum) = (Vec::new(), Vec::new(), 0);
        for path in paths {
            let (path, file) = (path.as_ref(), DiskFile::open(path.as_ref())?);
            let first = items.len();
            entries(&file, |entry| {
                sum = crc32c::crc32c_append(sum, entry.name.as_bytes());
                sum = crc32c::crc32c_append(sum, &entry.bytes.to_le_bytes());
                add(&mut items, first, files.len(), entry)
                    .map_err(|(at, what)| DataError::bad(path, at, what))
            })?;
            files.push(file);
        }
        if items.is_empty() {
            let first = files.first().map(|file| file.path().display().to_string());
            let what = format!(
                "{} with {} other tar files have no item: a file with a dot in its name",
                first.as_deref().unwrap_or("no file"),
                files.len().saturating_sub(1)
            );
            return Err(DataError::Settings(what));
        }
        Ok(Self { files, items, sum })
    }

    fn read(&self, item: &Item) -> Result<TarItem, DataError> {
        let file = &self.files[item.file];
        let mut parts = BTreeMap::new();
        for (name, start, bytes) in &item.parts {
            if *bytes > MOST {
                let what = format!("a part of {bytes} bytes is too large for an item");
                return Err(DataError::bad(file.path(), *start, what));
            }
            let mut part = vec![0; *bytes as usize];
            file.read(&mut part, *start)?;
            parts.insert(name.clone(), part);
        }
        let key = item.key.clone();
        Ok(TarItem { key, parts })
    }
}

/// Adds a file to the last item, or begins another one.
fn add(
    items: &mut Vec<Item>,
    first: usize,
    file: usize,
    entry: Entry,
) -> Result<(), (u64, String)> {
    let Entry { name, start, bytes } = entry;
    let name = name.strip_prefix("./").unwrap_or(&name);
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    // Hidden files and those without an extension are not parts of items.
    let Some(dot) = name[base..].find('.').filter(|dot| *dot > 0) else {
        return Ok(());
    };
    let (key, part) = (&name[..base + dot], &name[base + dot + 1..]);
    let part = (part.to_lowercase(), start, bytes);
    match items[first..].last_mut() {
        Some(last) if last.key == key => {
            if last.parts.iter().any(|own| own.0 == part.0) {
                return Err((start, format!("`{key}` has two parts `{}`", part.0)));
            }
            last.parts.push(part);
        }
        _ => items.push(Item {
            file,
            key: key.to_owned(),
            parts: vec![part],
        }),
    }
    Ok(())
}

impl Source for Tars {
    type Item = TarItem;

    fn len(&self) -> usize {
        self.items.len()
    }

    fn get(&self, _: u64, index: usize) -> Result<TarItem, DataError> {
        self.read(&self.items[index])
    }

    fn place(&self, _: u64, index: usize) -> Place {
        let item = &self.items[index];
        let start = item.parts.first().map_or(0, |part| part.1);
        Place::file(self.files[item.file].path(), start)
    }

    fn identity(&self) -> String {
        let (items, files, sum) = (self.items.len(), self.files.len(), self.sum);
        format!("{items} items in {files} tar files with checksum {sum:08x}")
    }
}
