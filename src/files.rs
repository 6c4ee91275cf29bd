//! Reading files that others may have put there.
//!
//! Opening a named pipe waits for somebody who writes, and a device may give bytes without
//! end: what is to be a file is asked before it is opened.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// That there is a file, whatever links lead to it.
///
/// # Errors
/// It is something else, or nothing is there.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let about = fs::metadata(path)?.file_type();
    if about.is_file() {
        return Ok(());
    }
    if about.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let what = if about.is_fifo() {
        "pipe"
    } else if about.is_socket() {
        "socket"
    } else {
        "device"
    };
    let why = format!("this is not a file but a {what}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Opens a file for reading.
pub(crate) fn open(path: &Path) -> io::Result<fs::File> {
    check(path)?;
    fs::File::open(path)
}

/// All that is in a file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    check(path)?;
    fs::read(path)
}

/// The text of a file.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    check(path)?;
    fs::read_to_string(path)
}

/// That a file can be opened for writing where there may be none yet.
///
/// # Errors
/// Something else is there.
pub(crate) fn check_if_any(path: &Path) -> io::Result<()> {
    match check(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        checked => checked,
    }
}
