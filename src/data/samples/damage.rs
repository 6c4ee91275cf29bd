//! Finds unreadable images before a run begins.
//!
//! Decoding all images would take as long as an epoch. Only the first and last bytes of each file are
//! checked, which reveals other formats and truncated copies; if they look wrong, the image is decoded
//! to decide. Damage in between is found when the image is decoded for training.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use gpipe_partitioner::words::count;

use super::picture::{read, readable};
use crate::DataError;

/// Limit of checked files per folder, evenly spaced: on a remote disk each takes as long as a few
/// steps.
const MOST_FILES: usize = 100_000;
/// Number of files named in a message.
const NAMED: usize = 5;
/// Number of checking threads, which mostly wait for the disk.
const THREADS: usize = 8;
/// Bytes after the last marker of a JPEG: cameras append some zeros.
const TAIL: i64 = 64;

/// Returns descriptions of unreadable files.
///
/// # Errors
/// There are more than may be skipped.
pub(super) fn checked(
    folder: &Path,
    files: impl Iterator<Item = PathBuf>,
    allowed: u64,
) -> Result<Vec<String>, DataError> {
    let files: Vec<PathBuf> = files.collect();
    let apart = files.len().div_ceil(MOST_FILES).max(1);
    let looked: Vec<&PathBuf> = files.iter().step_by(apart).collect();
    let damaged = damaged(folder, &looked);
    if damaged.len() as u64 <= allowed {
        return Ok(damaged);
    }
    let what = format!(
        "{} cannot be read: {}; replace {them}, or move {them} out of the folder",
        of(damaged.len(), files.len()),
        named(&damaged),
        them = if damaged.len() == 1 { "it" } else { "them" }
    );
    Err(DataError::bad_path(folder, what))
}

/// `1 of 20 images`
fn of(some: usize, all: usize) -> String {
    format!("{some} of {}", count(all, "image"))
}

/// Names the first ones, and the number of others.
pub(super) fn named(damaged: &[String]) -> String {
    let named = damaged.iter().take(NAMED).map(String::as_str);
    let more = damaged.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    named.chain(more.as_deref()).collect::<Vec<_>>().join(", ")
}

fn damaged(folder: &Path, files: &[&PathBuf]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let look = || {
        let mut found = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = files.get(number) else {
                return found;
            };
            if let Some(why) = wrong(path) {
                let path = path.strip_prefix(folder).unwrap_or(path);
                found.push((number, format!("{} ({why})", path.display())));
            }
        }
    };
    let mut found = std::thread::scope(|scope| {
        let threads = THREADS.min(files.len().div_ceil(THREADS));
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(look)).collect();
        let found = threads.into_iter().flat_map(|own| match own.join() {
            Ok(found) => found,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        found.collect::<Vec<_>>()
    });
    found.sort_unstable();
    found.into_iter().map(|(_, what)| what).collect()
}

/// Explains why an image cannot be read, as far as its ends tell.
pub(super) fn wrong(path: &Path) -> Option<String> {
    match looks_whole(path) {
        Ok(true) => None,
        _ => read(path)
            .and_then(|bytes| readable(&bytes))
            .err()
            .map(|why| format!("{why:#}")),
    }
}

/// Whether the first and last bytes are those of a JPEG or a PNG.
fn looks_whole(path: &Path) -> std::io::Result<bool> {
    gpipe_partitioner::files::check(path)?;
    let mut file = File::open(path)?;
    let mut first = [0; 8];
    file.read_exact(&mut first)?;
    let mut last = Vec::new();
    let size = file.seek(SeekFrom::End(0))? as i64;
    file.seek(SeekFrom::End(-TAIL.min(size)))?;
    file.read_to_end(&mut last)?;
    Ok(match first {
        [0xff, 0xd8, 0xff, ..] => last.windows(2).any(|two| two == [0xff, 0xd9]),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'] => {
            last.windows(4).any(|four| four == *b"IEND")
        }
        _ => false,
    })
}
