//! Writes a checkpoint so that there is a complete one at every moment.
//!
//! 1. All shards are written in parallel to `.writing-step-N`, each synced to the disk. Weights that
//!    are not finite are an error here.
//! 2. `manifest.json`, with their sizes and checksums, is written and synced there, then the folder
//!    itself. The caller may hold the checkpoint back until the next step has shown that training can
//!    continue from it.
//! 3. An existing `step-N` is moved to `.replaced-step-N`, which is valid while there is no `step-N`.
//! 4. `.writing-step-N` is renamed to `step-N`, and the folder of checkpoints is synced.
//! 5. Only then are old ones removed: each is renamed first, so that its remains are not taken for a
//!    checkpoint.
//!
//! A failure or interruption in 1 to 4 leaves older checkpoints intact; an interruption in 5 leaves the
//! new one.
//!
//! Of several processes, each writes the shards of its own stages after rank 0 has created the folder;
//! rank 0 does the rest, and sends the result to the others. If any process fails, all return its
//! error. If one is lost, the world tells the others, and the next run removes their files.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::disk::Disk;
use super::error::CheckpointError;
use super::extras::Extras;
use super::folder::{self, REMOVING, REPLACED, WRITING};
use super::manifest::{self, Manifest, ShardEntry, shard_file};
use super::shard;
use super::shard_file::ShardFile;
use super::together::Together;
use gpipe_engine::panics::panic_message;
use gpipe_torch::Portable;
use gpipe_torch::fail_point::fail_point;
use gpipe_torch::pipeline::{Draws, ShardOf};
use gpipe_torch::threads::side_by_side;

/// Limit of files written or read in parallel: more would not be faster, and a manifest may name any
/// number.
const AT_ONCE: usize = 64;

/// Contents of a checkpoint: this process's stages, and for rank 0 the rest.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) extras: Extras,
    pub(super) draws: Draws,
    /// Stages with their numbers.
    pub(super) stages: Vec<(ShardOf, Vec<Portable>)>,
    /// Whether weights may be NaN or infinite.
    pub(super) non_finite: bool,
}

/// Destination and writers of checkpoints.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) folder: PathBuf,
    pub(super) keep: usize,
    /// Step of a checkpoint that is kept beside the newest.
    pub(super) spared: Option<u64>,
    pub(super) together: Together,
}

/// A shard and its stage.
type Shard = (ShardOf, ShardEntry);

/// A complete checkpoint, synced to the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Completed steps.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// Total size of its files.
    pub bytes: u64,
}

/// Writes the checkpoint of a step, and keeps the newest ones; publishes nothing unless `approved`,
/// which rank 0 asks when all is written and older ones still exist. If a process has nothing to write,
/// all return its error. `part` is dropped when this process's own shards are written.
pub(super) fn write(
    to: &Target,
    step: u64,
    copied: Result<Copied, CheckpointError>,
    part: Option<Sender<()>>,
    approved: impl FnOnce() -> bool,
) -> Result<Option<Saved>, CheckpointError> {
    let (disk, together) = (&*to.disk, &to.together);
    // A failure elsewhere must not end this process while it can still write.
    let mut held = together.hold();
    let name = folder::name(step);
    let temporary = to.folder.join([WRITING, &name].concat());
    let clean = || {
        // Its space may be what is missing; the error tells the rest.
        let _ = disk.remove_folder(&temporary);
    };
    together.tell(|| {
        to.attempt(|| begin(disk, &temporary))
            .inspect_err(|_| clean())
    })?;
    let own = to.attempt(|| {
        let copied = copied?;
        let shards = shards(to, &temporary, copied.stages, copied.non_finite)?;
        Ok((shards, (copied.extras, copied.draws)))
    });
    let (own, head) = match own {
        Ok((shards, head)) => (Ok(shards), Some(head)),
        Err(error) => (Err(error), None),
    };
    let all = together.collect(own);
    drop(part);
    if !together.leads() {
        // Only the result is awaited now, from a rank that another one may delay.
        held = None;
    }
    let bytes = together.tell(|| {
        let written = to.attempt(|| {
            // If this process has no shards, it has failed, and so have all.
            let (shards, Some(head)) = (all?, head) else {
                return Ok(None);
            };
            fail_point("seal");
            let bytes = seal(to, &temporary, shards, head)?;
            fail_point("sealed");
            // Approval may take long.
            held = None;
            if !approved() {
                return Ok(None);
            }
            held = together.hold();
            publish(disk, &to.folder, &name)?;
            fail_point("published");
            Ok(Some(bytes))
        });
        if !matches!(written, Ok(Some(_))) {
            clean();
        }
        let bytes = written?;
        if bytes.is_some() {
            to.attempt(|| prune(disk, &to.folder, step, (to.keep, to.spared)))?;
        }
        Ok(bytes)
    })?;
    let path = to.folder.join(&name);
    Ok(bytes.map(|bytes| Saved { step, path, bytes }))
}

impl Target {
    /// Runs a part of the work. A panic is reported to the others too; if the folder was replaced, that
    /// is reported whatever error the disk gave.
    fn attempt<T>(
        &self,
        work: impl FnOnce() -> Result<T, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            Err(CheckpointError::Broken {
                folder: self.folder.clone(),
                why: panic_message(&*panic),
            })
        });
        done.or_else(|error| match error {
            // The error of another process, or of all.
            CheckpointError::Elsewhere { .. } | CheckpointError::World(_) => Err(error),
            error => self.disk.check().and(Err(error)),
        })
    }
}

/// Creates an empty folder.
fn begin(disk: &dyn Disk, temporary: &Path) -> Result<(), CheckpointError> {
    folder::remove(disk, temporary)?;
    let failed = |error| CheckpointError::write("create", temporary, error);
    disk.make_folder(temporary).map_err(failed)
}

/// Step 1.
fn shards(
    to: &Target,
    temporary: &Path,
    stages: Vec<(ShardOf, Vec<Portable>)>,
    non_finite: bool,
) -> Result<Vec<Shard>, CheckpointError> {
    let shards = all_at_once(stages.into_iter(), |(of, tensors)| {
        let file = shard_file(of);
        fail_point("shard");
        let entry = shard::write(&*to.disk, temporary, &file, tensors, non_finite)?;
        fail_point("shard");
        Ok((of, entry))
    })?;
    if !to.together.leads() {
        // Rank 0 syncs later, but may be on a host that does not know these files.
        folder::sync(&*to.disk, temporary)?;
    }
    Ok(shards)
}

/// Step 2; returns the total size of all files.
fn seal(
    to: &Target,
    temporary: &Path,
    shards: Vec<Vec<Shard>>,
    (extras, draws): (Extras, Draws),
) -> Result<u64, CheckpointError> {
    let disk = &*to.disk;
    let shards = complete(to, temporary, shards)?;
    let sizes: u64 = shards.iter().map(|shard: &ShardEntry| shard.bytes).sum();
    let bytes = Manifest::new(extras, draws, shards).to_bytes();
    let path = temporary.join(manifest::FILE);
    let failed = |error| CheckpointError::write("write", &path, error);
    let bytes = bytes.map_err(|error| failed(error.into()))?;
    // Detects now what cannot be read back, such as lists nested too deeply.
    Manifest::from_bytes(&bytes, &path)?;
    let mut file = disk.create(&path).map_err(failed)?;
    file.write_all(&bytes)
        .and_then(|()| file.sync())
        .map_err(failed)?;
    folder::sync(disk, temporary)?;
    Ok(sizes + bytes.len() as u64)
}

/// Sorts the shards of all processes by stage and replica; checks that each stage exists once, in its
/// place.
fn complete(
    to: &Target,
    temporary: &Path,
    shards: Vec<Vec<Shard>>,
) -> Result<Vec<ShardEntry>, CheckpointError> {
    for (rank, shards) in shards.iter().enumerate().skip(1) {
        for (_, entry) in shards {
            ShardFile::open(temporary, entry).map_err(|error| CheckpointError::NotShared {
                folder: to.folder.clone(),
                why: format!(
                    "rank 0 does not see what rank {rank} on `{}` has written there ({error})",
                    to.together.host(rank)
                ),
            })?;
        }
    }
    let mut all: Vec<_> = shards.into_iter().flatten().collect();
    all.sort_by_key(|(of, _)| *of);
    let stages = all.iter().filter(|(of, _)| of.replica == 0);
    let wrong = stages.enumerate().find(|(own, (of, _))| *own != of.stage);
    if let Some((own, (of, _))) = wrong {
        let (stage, what) = if of.stage < own {
            (of.stage, "two processes have")
        } else {
            (own, "no process has")
        };
        return Err(CheckpointError::Broken {
            folder: to.folder.clone(),
            why: format!("{what} stage {stage}"),
        });
    }
    Ok(all.into_iter().map(|(_, entry)| entry).collect())
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
            // If this fails too, the replaced one is valid all the same.
            let _ = disk.rename(&aside, &path);
        }
        CheckpointError::write("rename", &temporary, error)
    })?;
    folder::sync(disk, folder)
}

/// Step 5. Checkpoints of later steps precede a resume at an earlier step: they do not belong to this
/// run any more, and must not be its newest.
fn prune(
    disk: &dyn Disk,
    folder: &Path,
    step: u64,
    (keep, spared): (usize, Option<u64>),
) -> Result<(), CheckpointError> {
    let name = folder::name(step);
    folder::remove(disk, &folder.join([REPLACED, &name].concat()))?;
    let all = folder::list(folder)?;
    let later = all.range((Bound::Excluded(step), Bound::Unbounded));
    let later = later.map(|(_, path)| path);
    let older = all.range(..=step).rev().skip(keep.max(1));
    let older = older.filter(|(step, _)| Some(**step) != spared);
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

/// Runs a job for each item, many in parallel; returns the results in order.
///
/// # Errors
/// The first error in item order, when all are done.
pub(super) fn all_at_once<T: Send, R: Send>(
    items: impl ExactSizeIterator<Item = T> + Send,
    job: impl Fn(T) -> Result<R, CheckpointError> + Sync,
) -> Result<Vec<R>, CheckpointError> {
    let done = side_by_side(items, AT_ONCE, job);
    done.into_iter().collect()
}
