//! Reading files that others may have put there.
//!
//! Opening a named pipe waits for somebody who writes, and a device may give bytes without
//! end: what is to be a file is asked before it is opened.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use gpipe_partitioner::words::path_instead;

/// That there is a file, whatever links lead to it.
///
/// # Errors
/// It is something else, or nothing is there.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let about = fs::metadata(path).map_err(|error| meant(path, error))?;
    let about = about.file_type();
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

/// The error, with what may be meant where nothing is there.
fn meant(path: &Path, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    match path_instead(path) {
        near if near.is_empty() => error,
        near => io::Error::new(error.kind(), format!("{error}{near}")),
    }
}

/// That something new can be made at a path, however many folders are missing on the way there:
/// in the first that is there a folder is made, and taken away again.
///
/// # Errors
/// It cannot.
pub(crate) fn check_can_make(path: &Path) -> io::Result<()> {
    let above = path.ancestors().find(|own| own.exists());
    let above = above.unwrap_or(Path::new("."));
    let probe = above.join(format!(".gpipe-rs-{}", std::process::id()));
    match fs::create_dir(&probe) {
        Ok(()) => fs::remove_dir(&probe),
        // Another thread of this process asks the same.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// That a file can be written where there is one or none yet; a device or a pipe is taken at its
/// word.
///
/// # Errors
/// It cannot.
pub(crate) fn check_can_write(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(_) => check_can_make(path),
        Ok(_) if path.is_file() => fs::OpenOptions::new().append(true).open(path).map(drop),
        Ok(_) => Ok(()),
    }
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
