//! Where the records of a file begin.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::frame::{self, AROUND, Flaw, HEADER};
use crate::data::DataError;

/// Bytes that are searched at a time for the next whole record.
const SEARCHED: u64 = 1 << 20;

/// A file's records, found by their lengths alone: of the data only the checksums are read.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// Where each record begins.
    pub(super) starts: Vec<u64>,
    /// A checksum of the checksums of all data.
    pub(super) sum: u32,
    /// Those that cannot be read, and why.
    pub(super) broken: BTreeMap<usize, String>,
}

impl Shard {
    /// Walks from record to record. Where a length is damaged the walk goes on with the
    /// next place where both checksums of a record are right: one record is lost, not
    /// the rest of the file.
    pub(super) fn scan(path: &Path) -> Result<Self, DataError> {
        let read = |source| DataError::read(path, source);
        let file = File::open(path).map_err(read)?;
        let size = file.metadata().map_err(read)?.len();
        let mut shard = Self {
            path: path.to_owned(),
            size,
            starts: Vec::new(),
            sum: 0,
            broken: BTreeMap::new(),
        };
        refuse_compressed(&file, path, size)?;
        let mut offset = 0;
        while offset < size {
            shard.starts.push(offset);
            offset = match frame::at(&file, offset, size) {
                Ok(length) => {
                    let told = frame::told(&file, offset, length).map_err(read)?;
                    shard.sum = crc32c::crc32c_append(shard.sum, &told);
                    offset + AROUND + length
                }
                Err(Flaw::Read(source)) => return Err(read(source)),
                Err(Flaw::Cut(what)) => shard.lost(what, size),
                Err(Flaw::Length(what)) => {
                    let next = search(&file, offset + 1, size).map_err(read)?;
                    let lost = next.unwrap_or(size) - offset;
                    let what = match next {
                        None if offset == 0 => {
                            "this is no TFRecord file: no record begins anywhere in it".to_owned()
                        }
                        None => format!("{what}; {lost} bytes, the rest, are lost"),
                        Some(_) => format!("{what}; {lost} bytes are lost"),
                    };
                    shard.lost(what, offset + lost)
                }
            };
        }
        Ok(shard)
    }

    /// The last record is broken; the next one begins at `next`.
    fn lost(&mut self, what: String, next: u64) -> u64 {
        self.broken.insert(self.starts.len() - 1, what);
        next
    }

    /// The data of a record, checked.
    pub(super) fn read(&self, file: &File, record: usize) -> Result<Vec<u8>, DataError> {
        let offset = self.starts[record];
        if let Some(what) = self.broken.get(&record) {
            return Err(DataError::bad(&self.path, offset, what.as_str()));
        }
        frame::read(file, &self.path, offset, self.size)
    }
}

/// A compressed file has no places that could be read by themselves.
fn refuse_compressed(file: &File, path: &Path, size: u64) -> Result<(), DataError> {
    let mut start = [0; HEADER as usize];
    if size < HEADER {
        return Ok(());
    }
    file.read_exact_at(&mut start, 0)
        .map_err(|source| DataError::read(path, source))?;
    if frame::length(&start).is_none() && start.starts_with(&[0x1f, 0x8b]) {
        let what =
            "the file is compressed with gzip: decompress it, records are read from all over it";
        return Err(DataError::bad(path, 0, what));
    }
    Ok(())
}

/// The first place from `from` on where a whole record begins, both checksums right.
fn search(file: &File, mut from: u64, size: u64) -> io::Result<Option<u64>> {
    while from + AROUND <= size {
        let bytes = (SEARCHED + HEADER).min(size - from);
        let mut block = vec![0; bytes as usize];
        file.read_exact_at(&mut block, from)?;
        for (offset, header) in (from..).zip(block.windows(HEADER as usize)) {
            if frame::length(header).is_some() && is_whole(file, offset, size)? {
                return Ok(Some(offset));
            }
        }
        from += bytes - HEADER + 1;
    }
    Ok(None)
}

fn is_whole(file: &File, offset: u64, size: u64) -> io::Result<bool> {
    match frame::read(file, Path::new(""), offset, size) {
        Ok(_) => Ok(true),
        Err(DataError::File { source, .. }) => Err(source),
        Err(_) => Ok(false),
    }
}
