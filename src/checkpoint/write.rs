//! How a checkpoint comes to be, so that there is a whole one at every moment.
//!
//! 1. All shards are written at once into `.writing-step-N`, each synced to the disk.
//!    Weights that are not finite end it here.
//! 2. `manifest.json`, with their sizes and checksums, is written and synced there,
//!    then the folder itself. Whoever asked for the checkpoint may then hold it back
//!    until the next step has shown that training goes on from there.
//! 3. If there is a `step-N`, it is moved to `.replaced-step-N`, which counts as
//!    long as there is no `step-N`.
//! 4. `.writing-step-N` is renamed to `step-N`, and the folder of checkpoints synced.
//! 5. Only then are old ones removed: each is renamed first, so that nobody takes
//!    what is left of it for a checkpoint.
//!
//! Whatever fails or stops the process in 1 to 4 leaves older checkpoints as they
//! were; what stops it in 5 leaves the new one.

use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::error::CheckpointError;
use super::extras::Extras;
use super::folder::{self, REMOVING, REPLACED, WRITING};
use super::manifest::{self, Manifest, ShardEntry, shard_file};
use super::shard;
use crate::pipeline::Draws;
use crate::torch::Portable;
use crate::torch::threads::side_by_side;

/// Files that are written or read at a time, at most: more keep no disk busier, and a
/// manifest may name any number of them.
const AT_ONCE: usize = 64;

/// All that goes into a checkpoint.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) extras: Extras,
    pub(super) draws: Draws,
    pub(super) stages: Vec<Vec<Portable>>,
    /// Whether weights may be NaN or infinite.
    pub(super) non_finite: bool,
}

/// A checkpoint that is whole and safe from a loss of power.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Steps that the run had done.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
}

/// Writes a checkpoint into `folder`, and leaves the `keep` newest there; nothing if it is
/// not `approved`, which is asked when all is written and older ones are there still.
pub(super) fn write(
    disk: &dyn Disk,
    folder: &Path,
    keep: usize,
    copied: Copied,
    approved: impl FnOnce() -> bool,
) -> Result<Option<Saved>, CheckpointError> {
    let step = copied.extras.step;
    let name = folder::name(step);
    let (temporary, path) = (folder.join([WRITING, &name].concat()), folder.join(&name));
    let written = fill(disk, &temporary, copied).and_then(|bytes| {
        if !approved() {
            return Ok(None);
        }
        publish(disk, folder, &name)?;
        Ok(Some(bytes))
    });
    if !matches!(written, Ok(Some(_))) {
        // The room that it takes may be what is missing; the error says the rest.
        let _ = disk.remove_folder(&temporary);
    }
    let Some(bytes) = written? else {
        return Ok(None);
    };
    prune(disk, folder, step, keep)?;
    Ok(Some(Saved { step, path, bytes }))
}

/// Steps 1 and 2; gives the bytes of all files.
fn fill(disk: &dyn Disk, temporary: &Path, copied: Copied) -> Result<u64, CheckpointError> {
    let Copied {
        extras,
        draws,
        stages,
        non_finite,
    } = copied;
    folder::remove(disk, temporary)?;
    let failed = |error| CheckpointError::write("create", temporary, error);
    disk.make_folder(temporary).map_err(failed)?;
    let shards = all_at_once(stages.into_iter().enumerate(), |(stage, tensors)| {
        shard::write(disk, temporary, &shard_file(stage), tensors, non_finite)
    })?;
    let sizes: u64 = shards.iter().map(|shard: &ShardEntry| shard.bytes).sum();
    let bytes = Manifest::new(extras, draws, shards).to_bytes();
    let path = temporary.join(manifest::FILE);
    let failed = |error| CheckpointError::write("write", &path, error);
    let bytes = bytes.map_err(|error| failed(error.into()))?;
    // What cannot be read again, such as lists nested too deep, is told now.
    Manifest::from_bytes(&bytes, &path)?;
    let mut file = disk.create(&path).map_err(failed)?;
    file.write_all(&bytes)
        .and_then(|()| file.sync())
        .map_err(failed)?;
    folder::sync(disk, temporary)?;
    Ok(sizes + bytes.len() as u64)
}

/// Steps 3 and 4.
fn publish(disk: &dyn Disk, folder: &Path, name: &str) -> Result<(), CheckpointError> {
    let [path, temporary, aside] =
        ["", WRITING, REPLACED].map(|prefix| folder.join([prefix, name].concat()));
    let replaces = path.exists();
    if replaces {
        folder::remove(disk, &aside)?;
        let failed = |error| CheckpointError::write("rename", &path, error);
        disk.rename(&path, &aside).map_err(failed)?;
    }
    disk.rename(&temporary, &path).map_err(|error| {
        if replaces {
            // If this fails too, the one that was moved counts all the same.
            let _ = disk.rename(&aside, &path);
        }
        CheckpointError::write("rename", &temporary, error)
    })?;
    folder::sync(disk, folder)
}

/// Step 5. Checkpoints of later steps are from before the run was taken up again at
/// an earlier one: they are not of this run any more, and must not be its newest.
fn prune(disk: &dyn Disk, folder: &Path, step: u64, keep: usize) -> Result<(), CheckpointError> {
    let name = folder::name(step);
    folder::remove(disk, &folder.join([REPLACED, &name].concat()))?;
    let all = folder::list(folder)?;
    let later = all.range((Bound::Excluded(step), Bound::Unbounded));
    let later = later.map(|(_, path)| path);
    let older = all.range(..=step).rev().skip(keep.max(1));
    for path in later.chain(older.map(|(_, path)| path)) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let name = name.strip_prefix(REPLACED).unwrap_or(name);
        let aside = folder.join([REMOVING, name].concat());
        let failed = |error| CheckpointError::write("remove", path, error);
        folder::remove(disk, &aside)?;
        disk.rename(path, &aside).map_err(failed)?;
        folder::remove(disk, &aside)?;
    }
    Ok(())
}

/// Runs a job for each item, many at a time; the results in order.
///
/// # Errors
/// The first error in the order of the items, when all are done.
pub(super) fn all_at_once<T: Send, R: Send>(
    items: impl ExactSizeIterator<Item = T> + Send,
    job: impl Fn(T) -> Result<R, CheckpointError> + Sync,
) -> Result<Vec<R>, CheckpointError> {
    let done = side_by_side(items, AT_ONCE, job);
    done.into_iter().collect()
}
