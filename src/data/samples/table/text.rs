//! Reading of text tables, and their errors.

use std::path::Path;

use csv::StringRecord;
use tch::Device;

use gpipe_partitioner::Bytes;

use super::cell::listed;
use crate::lines::{OPEN_QUOTE, SEPARATORS, open_quote, other_cells};
use crate::{DataError, Place, magic};
use gpipe_partitioner::files;
use gpipe_torch::memory::room_on;

/// Checks that the first line is a header.
pub(super) fn check_names(header: &StringRecord) -> Result<(), String> {
    if header.is_empty() || header.iter().any(|name| name.parse::<f64>().is_err()) {
        return Ok(());
    }
    let all: Vec<&str> = header.iter().collect();
    Err(format!(
        "this is to be the names of the columns, but it is numbers ({}): put a header above them",
        listed(&all)
    ))
}

pub(super) fn at(path: &Path, line: u64, what: String) -> DataError {
    let path = path.to_owned();
    DataError::Bad {
        place: Place::Line { path, line },
        what,
    }
}

pub(super) fn damaged(path: &Path, error: &csv::Error) -> DataError {
    let line = error.position().map_or(1, csv::Position::line);
    let what = match error.kind() {
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => other_cells(*len as usize, *expected_len as usize),
        csv::ErrorKind::Utf8 { .. } => "this is not UTF-8 text: save it as UTF-8".to_owned(),
        _ => format!("this is no CSV: {error}"),
    };
    at(path, line, what)
}

/// Returns the line number at a position, after empty lines.
pub(super) fn line(text: &[u8], start: &csv::Position) -> u64 {
    let rest = text.get(start.byte() as usize..).unwrap_or_default();
    let empty = rest.iter().take_while(|byte| matches!(byte, b'\n' | b'\r'));
    start.line() + empty.filter(|byte| **byte == b'\n').count() as u64
}

/// Reads a whole file, if its quotes are closed and its numbers fit into memory.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    magic::refuse_other(path, &[])?;
    let failed = |source| DataError::read(path, source);
    let size = files::open(path)
        .and_then(|file| file.metadata())
        .map_err(failed)?
        .len();
    // The text, and at most one 8-byte number per two bytes of it.
    refuse_large(path, size.saturating_mul(5))?;
    let text = files::read(path).map_err(failed)?;
    let own = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    // Otherwise everything after the quote would be one cell, and rows lost silently.
    match open_quote(own, separator(own)) {
        Some(line) => Err(at(path, line, OPEN_QUOTE.to_owned())),
        None => Ok(text),
    }
}

/// Checks that there is enough memory.
pub(super) fn refuse_large(path: &Path, needed: u64) -> Result<(), DataError> {
    if let Ok((free, _)) = room_on(Device::Cpu)
        && needed > free.0
    {
        return Err(DataError::bad_path(
            path,
            format!(
                "a table is read into memory, which takes {}, and {free} are free: save it as \
                 safetensors or .npy, which are read row by row",
                Bytes(needed)
            ),
        ));
    }
    Ok(())
}

pub(super) fn separator(text: &[u8]) -> u8 {
    let header = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let there = |own: &&u8| header.contains(own);
    SEPARATORS.iter().find(there).copied().unwrap_or(b',')
}
