//! An index of a file's records.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::frame::{self, AROUND, HEADER};
use super::framed::{self, Flaw, Read as _};
use crate::DataError;
use crate::magic::{self, Magic};
use gpipe_partitioner::files;

/// Bytes searched at a time for the next whole record: few at first, as it is near if only one length
/// is damaged, then doubling.
const SEARCHED: std::ops::RangeInclusive<u64> = (1 << 12)..=(1 << 20);
/// Bytes that reveal whether a file is compressed: more than a block's tables.
const COMPRESSED: usize = 1 << 10;
/// Limit of reading, as a multiple of the file's size, to verify apparent records in damaged parts.
/// They overlap only if crafted, and each would be read to its end.
const TIMES: u64 = 4;

/// A file's records, located by their lengths: of the data, only the checksums are read.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// Offset of each record.
    pub(super) starts: Vec<u64>,
    /// Checksum of the checksums of all data.
    pub(super) sum: u32,
    /// Unreadable records, with reasons.
    pub(super) broken: BTreeMap<usize, String>,
}

impl Shard {
    /// Walks from record to record. After a damaged length, continues at the next place with valid
    /// checksums of a record: one record is lost, not the rest of the file.
    pub(super) fn scan(path: &Path) -> Result<Self, DataError> {
        let read = |source| DataError::read(path, source);
        let file = files::open(path).map_err(read)?;
        let size = file.metadata().map_err(read)?.len();
        let mut shard = Self {
            path: path.to_owned(),
            size,
            starts: Vec::new(),
            sum: 0,
            broken: BTreeMap::new(),
        };
        refuse_compressed(&file, path, size)?;
        let mut search = Search {
            file: &file,
            size,
            left: size.saturating_mul(TIMES),
        };
        let (mut ahead, mut offset) = (Ahead::new(&file, size), 0);
        while offset < size {
            shard.starts.push(offset);
            offset = match framed::at(&mut ahead, offset, size) {
                Ok(length) => {
                    let mut told = [0; 4];
                    let place = offset + HEADER + length;
                    ahead.read(&mut told, place).map_err(read)?;
                    shard.sum = crc32c::crc32c_append(shard.sum, &told);
                    offset + AROUND + length
                }
                Err(Flaw::Read(source)) => return Err(read(source)),
                Err(Flaw::Cut(what)) => {
                    if offset == 0 {
                        magic::refuse_other(path, &[Magic::TfRecord])?;
                    }
                    shard.lost(what, size)
                }
                Err(Flaw::Length(what)) => {
                    let next = search.from(offset + 1).map_err(read)?;
                    let lost = next.unwrap_or(size) - offset;
                    let what = match next {
                        None if offset == 0 => {
                            magic::refuse_other(path, &[Magic::TfRecord])?;
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

    /// Records that the last record is broken, and the next one begins at `next`.
    fn lost(&mut self, what: String, next: u64) -> u64 {
        self.broken.insert(self.starts.len() - 1, what);
        next
    }

    /// Returns the range of a record with its frame.
    ///
    /// # Errors
    /// The record was damaged when the file was opened.
    pub(super) fn range(&self, record: usize) -> Result<Range<u64>, DataError> {
        let start = self.starts[record];
        if let Some(what) = self.broken.get(&record) {
            return Err(DataError::bad(&self.path, start, what.as_str()));
        }
        // A valid record ends where the next one begins, valid or not.
        let end = self.starts.get(record + 1).copied().unwrap_or(self.size);
        Ok(start..end)
    }
}

/// Sequential reader of a few bytes here and there, which reads large blocks if these are close
/// together.
struct Ahead<'a> {
    file: &'a File,
    size: u64,
    start: u64,
    block: Vec<u8>,
    /// Position of the last read.
    last: u64,
}

/// Bytes to read ahead if reads are closer together than...
const AHEAD: u64 = 1 << 18;
/// ...these.
const CLOSE: u64 = 1 << 14;

impl<'a> Ahead<'a> {
    fn new(file: &'a File, size: u64) -> Self {
        Self {
            file,
            size,
            start: 0,
            block: Vec::new(),
            last: 0,
        }
    }
}

impl framed::Read for Ahead<'_> {
    fn read(&mut self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let close = offset.saturating_sub(self.last) < CLOSE;
        self.last = offset;
        let inside = |own: &Self| {
            let from = usize::try_from(offset.checked_sub(own.start)?).ok()?;
            from.checked_add(into.len())
                .filter(|end| *end <= own.block.len())
                .map(|end| from..end)
        };
        let mut place = inside(self);
        if place.is_none() && close {
            let bytes = AHEAD.min(self.size.saturating_sub(offset));
            self.block.resize(bytes as usize, 0);
            self.start = offset;
            if let Err(error) = self.file.read_exact_at(&mut self.block, offset) {
                self.block.clear();
                return Err(error);
            }
            place = inside(self);
        }
        match place {
            Some(place) => into.copy_from_slice(&self.block[place]),
            None => self.file.read_exact_at(into, offset)?,
        }
        Ok(())
    }
}

/// Compression of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compressed {
    Gzip,
    Zlib,
}

/// Rejects compressed files, which have no random access.
fn refuse_compressed(file: &File, path: &Path, size: u64) -> Result<(), DataError> {
    let with = match compressed(file, path, size)? {
        None => return Ok(()),
        Some(Compressed::Gzip) => "gzip",
        Some(Compressed::Zlib) => "zlib",
    };
    let what = format!(
        "the file is compressed with {with}: decompress it, records are read from all over it; in a \
         program `TfRecords::decompressed` does so"
    );
    Err(DataError::bad(path, 0, what))
}

/// Detects the compression of a file that does not begin with a record.
pub(super) fn compressed(
    file: &File,
    path: &Path,
    size: u64,
) -> Result<Option<Compressed>, DataError> {
    let mut start = [0; COMPRESSED];
    let start = &mut start[..COMPRESSED.min(size as usize)];
    if size < HEADER {
        return Ok(None);
    }
    file.read_exact_at(start, 0)
        .map_err(|source| DataError::read(path, source))?;
    if frame::length(&start[..HEADER as usize]).is_some() {
        return Ok(None);
    }
    if start.starts_with(&[0x1f, 0x8b]) {
        return Ok(Some(Compressed::Gzip));
    }
    Ok(is_zlib(start).then_some(Compressed::Zlib))
}

/// Whether these bytes decompress to a record with zlib: its two-byte header alone is no proof.
fn is_zlib(start: &[u8]) -> bool {
    let mut header = [0; HEADER as usize];
    let mut decoder = flate2::read::ZlibDecoder::new(start);
    decoder.read_exact(&mut header).is_ok() && frame::length(&header).is_some()
}

/// Search for valid records in damaged parts of a file.
struct Search<'a> {
    file: &'a File,
    size: u64,
    /// Bytes that may still be read to verify records.
    left: u64,
}

impl Search<'_> {
    /// Returns the first place from `from` on with a valid record, both checksums right.
    fn from(&mut self, mut from: u64) -> io::Result<Option<u64>> {
        let mut searched = *SEARCHED.start();
        while from + AROUND <= self.size {
            let bytes = (searched + HEADER).min(self.size - from);
            let mut block = vec![0; bytes as usize];
            self.file.read_exact_at(&mut block, from)?;
            for (offset, header) in (from..).zip(block.windows(HEADER as usize)) {
                if let Some(length) = frame::length(header)
                    && self.is_whole(offset, length)?
                {
                    return Ok(Some(offset));
                }
            }
            from += bytes - HEADER + 1;
            searched = (2 * searched).min(*SEARCHED.end());
        }
        Ok(None)
    }

    fn is_whole(&mut self, offset: u64, length: u64) -> io::Result<bool> {
        if length > self.size - offset {
            return Ok(false);
        }
        let Some(left) = self.left.checked_sub(length) else {
            return Ok(false);
        };
        self.left = left;
        match framed::read(self.file, Path::new(""), offset, self.size) {
            Ok(_) => Ok(true),
            Err(DataError::File { source, .. }) => Err(source),
            Err(_) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tf_record::frame::header;

    /// A damaged length, followed by places that each seem to begin a record up to the end of the file:
    /// each was read to its end, which took quadratic time.
    #[test]
    fn overlapping_records_in_a_damaged_part_are_not_all_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        let (headers, size) = (499, 12 * 501_u64);
        let mut bytes = vec![0; HEADER as usize];
        for number in 1..=headers {
            let rest = size - number * HEADER - AROUND;
            bytes.extend(header(rest));
        }
        bytes.resize(size as usize, 0);
        fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        let mut search = Search {
            file: &file,
            size,
            left: TIMES * size,
        };
        assert_eq!(search.from(1).unwrap(), None);
        assert!(
            search.left < size,
            "as much as may be was read: {}",
            search.left
        );
        let shard = Shard::scan(&path).unwrap();
        assert_eq!((shard.starts.len(), shard.broken.len()), (1, 1));
    }

    /// Records that follow damaged lengths one by one are found, regardless of earlier reads.
    #[test]
    fn every_second_length_may_be_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        let mut writer = crate::TfRecordWriter::create(&path).unwrap();
        for _ in 0..200 {
            writer.write(&[7; 100]).unwrap();
        }
        writer.finish().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        for record in bytes.chunks_mut(116).step_by(2) {
            record[0] ^= 1;
        }
        fs::write(&path, &bytes).unwrap();
        let shard = Shard::scan(&path).unwrap();
        assert_eq!((shard.starts.len(), shard.broken.len()), (200, 100));
    }
}
