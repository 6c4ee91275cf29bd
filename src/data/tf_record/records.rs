//! The records of a data set's files.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::blocks::{Blocks, LARGE, Reader};
use super::frame::HEADER;
use super::framed;
use super::index::Shard;
use crate::source::Each;
use crate::{DataError, Place, Source};
use gpipe_torch::threads::side_by_side;

/// The records of several files, in file order, as bytes.
///
/// Opening scans the lengths of all records, several files at a time, so that any record can be read
/// directly. Loaders read on all their workers, and small records that are close together in blocks.
/// Checksums of lengths are verified when opening, those of data with each read. A damaged record is an
/// error when it is read, so that a loader can skip it.
#[derive(Debug)]
pub struct TfRecords {
    shards: Vec<Shard>,
    /// Number of each shard's first record, and the total.
    firsts: Vec<usize>,
    files: Files,
    blocks: Blocks,
}

impl TfRecords {
    /// Opens files.
    ///
    /// # Errors
    /// There are no files, one cannot be read or is compressed, or they have no records.
    pub fn open(paths: impl IntoIterator<Item: AsRef<Path>>) -> Result<Self, DataError> {
        Self::by(paths, Shard::scan)
    }

    pub(super) fn by(
        paths: impl IntoIterator<Item: AsRef<Path>>,
        open: impl Fn(&Path) -> Result<Shard, DataError> + Sync,
    ) -> Result<Self, DataError> {
        let paths: Vec<PathBuf> = paths
            .into_iter()
            .map(|path| path.as_ref().to_owned())
            .collect();
        let shards = on_threads(paths.len(), |shard| open(&paths[shard]));
        let shards: Vec<Shard> = shards.into_iter().collect::<Result<_, _>>()?;
        let mut firsts = vec![0];
        for shard in &shards {
            firsts.push(firsts[firsts.len() - 1] + shard.starts.len());
        }
        let records = Self {
            shards,
            firsts,
            files: Files::default(),
            blocks: Blocks::default(),
        };
        if records.is_empty() {
            let what = match &paths[..] {
                [] => "no TFRecord file was named".to_owned(),
                [one] => format!("{} is empty: it has no record", one.display()),
                [first, others @ ..] => format!(
                    "{} and {} other files are empty: they have no record",
                    first.display(),
                    others.len()
                ),
            };
            return Err(DataError::Settings(what));
        }
        Ok(records)
    }

    /// Opens the files of a folder with `.tfrecord` in their names, sorted by name.
    ///
    /// # Errors
    /// As [`TfRecords::open`].
    pub fn in_folder(folder: &Path) -> Result<Self, DataError> {
        let read = |source| DataError::read(folder, source);
        let mut paths = Vec::new();
        for entry in folder.read_dir().map_err(read)? {
            let path = entry.map_err(read)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.contains(".tfrecord") {
                paths.push(path);
            }
        }
        paths.sort();
        if paths.is_empty() {
            let folder = folder.display();
            let what = format!("{folder} has no file with .tfrecord in its name");
            return Err(DataError::Settings(what));
        }
        Self::open(paths)
    }

    /// Reads all records, and returns all damages in order.
    pub fn verify(&self) -> Vec<DataError> {
        let of_shard = |shard: usize| {
            // Reads the present file, without cached blocks.
            let blocks = Blocks::default();
            let mut reading = self.reading(&blocks);
            let records = self.firsts[shard]..self.firsts[shard + 1];
            let bad = records.filter_map(|record| reading.record(record).err());
            bad.collect::<Vec<_>>()
        };
        let bad = on_threads(self.shards.len(), of_shard);
        bad.into_iter().flatten().collect()
    }

    /// Returns the shard of a record, and its number in the shard.
    fn find(&self, record: usize) -> (usize, usize) {
        let shard = self.firsts.partition_point(|&first| first <= record) - 1;
        (shard, record - self.firsts[shard])
    }

    /// Passes the verified data of these records to `show`, in order.
    pub(super) fn show(
        &self,
        indices: &[usize],
        mut each: impl FnMut(Result<&[u8], DataError>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut reading = self.reading(&self.blocks);
        (indices.iter()).try_for_each(|&index| each(reading.record(index)))
    }

    fn reading<'a>(&'a self, blocks: &'a Blocks) -> Reading<'a> {
        Reading {
            records: self,
            blocks: blocks.reader(),
            own: Vec::new(),
            open: None,
        }
    }
}

/// State kept between reads.
struct Reading<'a> {
    records: &'a TfRecords,
    blocks: Reader<'a>,
    /// A record that no block has.
    own: Vec<u8>,
    /// The last file read, with its number.
    open: Option<(usize, Arc<File>)>,
}

impl Reading<'_> {
    /// Returns the verified data of a record.
    fn record(&mut self, index: usize) -> Result<&[u8], DataError> {
        let (number, record) = self.records.find(index);
        let shard = &self.records.shards[number];
        let range = shard.range(record)?;
        let file = match self.open.take_if(|(own, _)| *own == number) {
            Some((_, file)) => file,
            None => (self.records.files)
                .get(number, &shard.path)
                .map_err(|source| DataError::read(&shard.path, source))?,
        };
        let file = &self.open.insert((number, file)).1;
        if range.end - range.start <= LARGE {
            let bytes = self.blocks.bytes((number, file), &range, shard.size);
            if let Some(data) = bytes.and_then(framed::data) {
                return Ok(data);
            }
        }
        read(file, shard, &range, &mut self.own)
    }
}

/// Returns the data of a range's record, in one read if it is valid.
fn read<'b>(
    file: &File,
    shard: &Shard,
    range: &Range<u64>,
    bytes: &'b mut Vec<u8>,
) -> Result<&'b [u8], DataError> {
    bytes.resize((range.end - range.start) as usize, 0);
    let read = file.read_exact_at(bytes, range.start);
    if read.is_err() || framed::data(bytes).is_none() {
        // Reading it in parts finds the error and its place.
        *bytes = framed::read(file, &shard.path, range.start, shard.size)?;
        return Ok(bytes);
    }
    Ok(&bytes[HEADER as usize..bytes.len() - 4])
}

impl Source for TfRecords {
    type Item = Vec<u8>;

    fn len(&self) -> usize {
        self.firsts[self.shards.len()]
    }

    fn get(&self, _: u64, index: usize) -> Result<Vec<u8>, DataError> {
        self.reading(&self.blocks).record(index).map(<[u8]>::to_vec)
    }

    fn batch(&self, _: u64, indices: &[usize], each: Each<'_, Vec<u8>>) -> ControlFlow<()> {
        self.show(indices, |data| each(data.map(<[u8]>::to_vec)))
    }

    fn place(&self, _: u64, index: usize) -> Place {
        let (number, record) = self.find(index);
        let shard = &self.shards[number];
        Place::file(&shard.path, shard.starts[record])
    }

    fn identity(&self) -> String {
        let bytes: u64 = self.shards.iter().map(|shard| shard.size).sum();
        let sums = self.shards.iter().map(|shard| shard.sum.to_le_bytes());
        let sum = sums.fold(0, |all, sum| crc32c::crc32c_append(all, &sum));
        let (files, records) = (self.shards.len(), self.len());
        format!("{records} TFRecords in {files} files of {bytes} bytes with checksum {sum:08x}")
    }
}

/// Returns the results of `task` for all numbers below `count`, in order, computed on all cores.
pub(super) fn on_threads<T: Send>(count: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    side_by_side(0..count, cores, task)
}

/// Limit of open files: a data set may have more shards than a process may open.
const OPEN: usize = 64;

/// Files by number; the last used ones stay open.
#[derive(Debug, Default)]
struct Files {
    open: Mutex<VecDeque<(usize, Arc<File>)>>,
}

impl Files {
    fn get(&self, number: usize, path: &Path) -> io::Result<Arc<File>> {
        if let Some(file) = self.take(number) {
            return Ok(self.put(number, file));
        }
        // Without the lock, so that other threads can continue reading.
        let file = Arc::new(gpipe_partitioner::files::open(path)?);
        Ok(self.put(number, file))
    }

    fn take(&self, number: usize) -> Option<Arc<File>> {
        let mut open = self.open.lock();
        let place = open.iter().position(|(other, _)| *other == number)?;
        open.remove(place).map(|(_, file)| file)
    }

    fn put(&self, number: usize, file: Arc<File>) -> Arc<File> {
        let mut open = self.open.lock();
        open.truncate(OPEN - 1);
        open.push_front((number, Arc::clone(&file)));
        file
    }
}
