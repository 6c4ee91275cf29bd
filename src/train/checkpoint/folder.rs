//! A folder of checkpoints: which are there, and what killed processes left behind.
//!
//! | name | is |
//! |---|---|
//! | `step-00000100` | a whole checkpoint |
//! | `.writing-step-00000100` | one that is being written, or whose writer was killed |
//! | `.replaced-step-00000100` | the whole one that stood in the place of a newer one of the same step; counts where the newer one is not there |
//! | `.removing-step-00000100` | one that is being removed |

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::error::CheckpointError;

pub(super) const WRITING: &str = ".writing-";
pub(super) const REPLACED: &str = ".replaced-";
pub(super) const REMOVING: &str = ".removing-";

/// The name of the checkpoint of a step.
pub(super) fn name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a checkpoint of this name.
pub(super) fn step_of(own: &str) -> Option<u64> {
    let step = own.strip_prefix("step-")?.parse().ok()?;
    (name(step) == own).then_some(step)
}

/// The whole checkpoints of a folder by their steps; none where there is no folder.
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

/// Removes what killed processes left, and puts back what they had moved aside.
/// Nobody may be writing there.
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

/// Removes a folder with all that is in it, if it is there.
pub(super) fn remove(disk: &dyn Disk, path: &Path) -> Result<(), CheckpointError> {
    match disk.remove_folder(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(CheckpointError::write("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// What was renamed in the folder stays so.
pub(super) fn sync(disk: &dyn Disk, folder: &Path) -> Result<(), CheckpointError> {
    let synced = disk.sync_folder(folder);
    synced.map_err(|error| CheckpointError::write("write", folder, error))
}

/// Names of folders; those that are no text are none of ours.
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
