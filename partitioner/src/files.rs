//! Checks and reads of files at paths that users name.
//!
//! Opening a named pipe blocks until a writer comes, and a device may yield bytes without end: so
//! the file type is checked before a path is opened.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use crate::words::path_instead;

/// Checks that a path is a regular file, following links.
///
/// # Errors
/// The path is something else, or does not exist.
pub fn check(path: &Path) -> io::Result<()> {
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

/// Adds suggestions of similar paths to a "not found" error.
fn meant(path: &Path, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    match path_instead(path) {
        near if near.is_empty() => error,
        near => io::Error::new(error.kind(), format!("{error}{near}")),
    }
}

/// Checks that something new can be created at a path, even if several parent folders are missing:
/// creates a folder in the nearest existing parent and removes it again.
///
/// # Errors
/// It cannot be created.
pub fn check_can_make(path: &Path) -> io::Result<()> {
    let above = path.ancestors().find(|own| own.exists());
    let above = above.unwrap_or(Path::new("."));
    let probe = above.join(format!(".gpipe-rs-{}", std::process::id()));
    match fs::create_dir(&probe) {
        Ok(()) => fs::remove_dir(&probe),
        // Another thread of this process makes the same check.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks that a file can be written, whether it exists or not; devices and pipes are accepted
/// unchecked.
///
/// # Errors
/// The file cannot be written.
pub fn check_can_write(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(_) => check_can_make(path),
        Ok(_) if path.is_file() => fs::OpenOptions::new().append(true).open(path).map(drop),
        Ok(_) => Ok(()),
    }
}

/// Opens a file for reading.
pub fn open(path: &Path) -> io::Result<fs::File> {
    check(path)?;
    fs::File::open(path)
}

/// Reads a whole file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    check(path)?;
    fs::read(path)
}

/// Reads a whole file as text.
pub fn read_text(path: &Path) -> io::Result<String> {
    check(path)?;
    fs::read_to_string(path)
}

/// Checks that a path is a regular file or does not exist.
///
/// # Errors
/// The path is something else.
pub fn check_if_any(path: &Path) -> io::Result<()> {
    match check(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        checked => checked,
    }
}
