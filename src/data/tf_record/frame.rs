//! One record in its file: length, checksum of the length, data, checksum of the data.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::data::DataError;

/// Bytes before the data: the length and its checksum.
pub(super) const HEADER: u64 = 12;
/// Bytes around the data: the header, and the data's checksum.
pub(super) const AROUND: u64 = HEADER + 4;

/// Why there is no whole record at a place.
#[derive(Debug)]
pub(super) enum Flaw {
    Read(io::Error),
    /// The length is not to be trusted: where the next record is, is unknown.
    Length(String),
    /// The file ends before the record does.
    Cut(String),
}

/// CRC-32C, turned and moved as TensorFlow does, so that a checksum of data which
/// holds checksums is not weak.
pub(super) fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

pub(super) fn header(length: u64) -> [u8; HEADER as usize] {
    let mut header = [0; HEADER as usize];
    header[..8].copy_from_slice(&length.to_le_bytes());
    let sum = masked(&header[..8]);
    header[8..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// The length that a header tells, where its checksum is right.
pub(super) fn length(header: &[u8]) -> Option<u64> {
    let length = header.first_chunk::<8>()?;
    let sum = header.get(8..)?.first_chunk::<4>()?;
    (masked(length) == u32::from_le_bytes(*sum)).then(|| u64::from_le_bytes(*length))
}

/// The length of the record at `offset` of a file of `size` bytes, which it is inside of.
pub(super) fn at(file: &File, offset: u64, size: u64) -> Result<u64, Flaw> {
    let left = size.saturating_sub(offset);
    if left < HEADER {
        return Err(Flaw::Cut(format!(
            "the file ends after {left} of the {HEADER} bytes that begin a record: was it copied whole?"
        )));
    }
    let mut header = [0; HEADER as usize];
    file.read_exact_at(&mut header, offset)
        .map_err(Flaw::Read)?;
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

/// The checksum that is told of the data of the record at `offset`.
pub(super) fn told(file: &File, offset: u64, length: u64) -> io::Result<[u8; 4]> {
    let mut sum = [0; 4];
    file.read_exact_at(&mut sum, offset + HEADER + length)?;
    Ok(sum)
}

/// The data of the record at `offset`, checked.
pub(super) fn read(file: &File, path: &Path, offset: u64, size: u64) -> Result<Vec<u8>, DataError> {
    let length = at(file, offset, size).map_err(|flaw| match flaw {
        Flaw::Read(source) => DataError::read(path, source),
        Flaw::Length(what) | Flaw::Cut(what) => DataError::bad(path, offset, what),
    })?;
    let mut data = vec![0; length as usize + 4];
    file.read_exact_at(&mut data, offset + HEADER)
        .map_err(|source| DataError::read(path, source))?;
    let sum = data.split_off(length as usize);
    let (found, told) = (masked(&data).to_le_bytes(), sum);
    if found[..] == told[..] {
        return Ok(data);
    }
    let what = format!("the checksum of the record's {length} bytes of data is wrong");
    Err(DataError::bad(path, offset, what))
}
