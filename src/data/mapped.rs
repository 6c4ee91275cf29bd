//! Files as memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use memmap2::Mmap;

use super::DataError;

/// Maps a file that is only read. Pages come from the disk when they are touched, and
/// all processes share them.
pub(super) fn map(path: &Path) -> Result<Mmap, DataError> {
    let read = |source| DataError::read(path, source);
    let file = File::open(path).map_err(read)?;
    // Mapping one fails with words about devices.
    if file.metadata().map_err(read)?.is_dir() {
        return Err(read(ErrorKind::IsADirectory.into()));
    }
    // SAFETY: the map is only ever read as plain bytes, of which every value is valid.
    // What remains is another process that changes or cuts the file meanwhile, against
    // which no reader of mapped files can guard; training data is not written to.
    unsafe { Mmap::map(&file) }.map_err(read)
}
