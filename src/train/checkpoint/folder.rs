//! Lists a folder of checkpoints, and cleans up after killed processes.
//!
//! | name | is |
//! |---|---|
//! | `step-00000100` | a complete checkpoint |
//! | `.writing-step-00000100` | one being written, or left by a killed writer |
//! | `.replaced-step-00000100` | the previous one of that step; valid if there is no newer one |
//! | `.removing-step-00000100` | one being removed |

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::error::CheckpointError;

pub(super) const WRITING: &str = ".writing-";
pub(super) const REPLACED: &str = ".replaced-";
pub(super) const REMOVING: &str = ".removing-";

/// Returns the name of a step's checkpoint.
pub(super) fn name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Parses the step of a checkpoint's name.
pub(super) fn step_of(own: &str) -> Option<u64> {
    let step = own.strip_prefix("step-")?.parse().ok()?;
    (name(step) == own).then_some(step)
}

/// Returns the complete checkpoints of a folder by step; empty if there is no folder.
pub(super) fn list(folder: &Path) -> Result<BTreeMap<u64, PathBuf>, CheckpointError> {
    let names = names(folder)?;
    let found = |prefix: &'static str| {
        let steps = names.iter().filter_map(move |name| {
            let step = step_of(name.strip_prefix(prefix)?)?;
            Some((step, folder.join(name)))
        });
        steps.collect::<BTreeMap<_, _>>()
    };
    let mut all = found(REPLACED);
    all.extend(found(""));
    Ok(all)
}

/// Removes leftovers of killed processes, and restores checkpoints that they had moved aside. No other
/// process may be writing there.
pub(super) fn recover(disk: &dyn Disk, folder: &Path) -> Result<(), CheckpointError> {
    let names = names(folder)?;
    for name in &names {
        let path = folder.join(name);
        let left = |prefix: &str| {
            name.strip_prefix(prefix)
                .filter(|own| step_of(own).is_some())
        };
        if let Some(own) = left(REPLACED)
            && !names.iter().any(|name| name == own)
        {
            let failed = |error| CheckpointError::write("rename", &path, error);
            disk.rename(&path, &folder.join(own)).map_err(failed)?;
        } else if [WRITING, REPLACED, REMOVING]
            .iter()
            .any(|p| left(p).is_some())
        {
            remove(disk, &path)?;
        }
    }
    sync(disk, folder)
}

/// Removes a folder recursively, if it exists.
pub(super) fn remove(disk: &dyn Disk, path: &Path) -> Result<(), CheckpointError> {
    match disk.remove_folder(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(CheckpointError::write("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Syncs renames in the folder to the disk.
pub(super) fn sync(disk: &dyn Disk, folder: &Path) -> Result<(), CheckpointError> {
    let synced = disk.sync_folder(folder);
    synced.map_err(|error| CheckpointError::write("write", folder, error))
}

/// Returns the names of folders; names that are not valid text are skipped.
fn names(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let failed = |source| CheckpointError::Read {
        path: folder.to_owned(),
        source,
    };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if let (true, Ok(name)) = (entry.path().is_dir(), entry.file_name().into_string()) {
            names.push(name);
        }
    }
    Ok(names)
}
