//! A record in its file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::frame::{AROUND, HEADER, length, masked};
use crate::DataError;

/// The reason why there is no complete record.
#[derive(Debug)]
pub(super) enum Flaw {
    Read(io::Error),
    /// The length is damaged: the position of the next record is unknown.
    Length(String),
    /// The file ends within the record.
    Cut(String),
}

/// A source of bytes.
pub(super) trait Read {
    /// Fills `into` with the bytes from `offset` on.
    fn read(&mut self, into: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Read for &File {
    fn read(&mut self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }
}

/// Returns the length of the record at `offset`, which must be within a file of `size` bytes.
pub(super) fn at(file: &mut impl Read, offset: u64, size: u64) -> Result<u64, Flaw> {
    let left = size.saturating_sub(offset);
    if left < HEADER {
        return Err(Flaw::Cut(format!(
            "the file ends after {left} of the {HEADER} bytes that begin a record: was it copied whole?"
        )));
    }
    let mut header = [0; HEADER as usize];
    file.read(&mut header, offset).map_err(Flaw::Read)?;
    let Some(length) = length(&header) else {
        return Err(Flaw::Length(
            "the checksum of a record's length is wrong".to_owned(),
        ));
    };
    match length.checked_add(AROUND) {
        Some(whole) if whole <= left => Ok(length),
        _ => Err(Flaw::Cut(format!(
            "the file ends inside of a record of {length} bytes, {} of them there: was it copied whole?",
            (left - HEADER).min(length)
        ))),
    }
}

/// Returns the data of a framed record, if all of it is valid.
pub(super) fn data(record: &[u8]) -> Option<&[u8]> {
    let (header, rest) = record.split_at_checked(HEADER as usize)?;
    let (data, sum) = rest.split_last_chunk::<4>()?;
    let is_whole = length(header) == Some(data.len() as u64) && masked(data) == *sum;
    is_whole.then_some(data)
}

/// Returns the verified data of the record at `offset`.
pub(super) fn read(file: &File, path: &Path, offset: u64, size: u64) -> Result<Vec<u8>, DataError> {
    let length = at(&mut &*file, offset, size).map_err(|flaw| match flaw {
        Flaw::Read(source) => DataError::read(path, source),
        Flaw::Length(what) | Flaw::Cut(what) => DataError::bad(path, offset, what),
    })?;
    let mut data = vec![0; length as usize + 4];
    file.read_exact_at(&mut data, offset + HEADER)
        .map_err(|source| DataError::read(path, source))?;
    let sum = data.split_off(length as usize);
    if masked(&data)[..] == sum[..] {
        return Ok(data);
    }
    let what = format!("the checksum of the record's {length} bytes of data is wrong");
    Err(DataError::bad(path, offset, what))
}

/// Returns the verified data of the record at `offset` of a file.
pub(crate) fn read_record(file: &File, path: &Path, offset: u64) -> Result<Vec<u8>, DataError> {
    let size = file
        .metadata()
        .map_err(|source| DataError::read(path, source))?
        .len();
    read(file, path, offset, size)
}
