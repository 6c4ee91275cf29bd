//! A checkpoint that is there, and has been verified.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use tch::Tensor;

use super::error::CheckpointError;
use super::extras::Extras;
use super::folder;
use super::header::{self, Header};
use super::manifest::{self, Manifest, ShardEntry};
use super::write::all_at_once;
use crate::pipeline::Draws;
use crate::torch::Role;

/// A checkpoint whose every byte has been verified.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    extras: Extras,
    draws: Draws,
    shards: Vec<(ShardEntry, Header)>,
}

/// A checkpoint that a folder seems to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Steps that its run had done, as its name says.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
}

impl Checkpoint {
    /// The checkpoint in a folder such as `checkpoints/step-00000100`.
    ///
    /// All of its files are read, and believed only when sizes and checksums are
    /// those of the manifest and the manifest's own checksum is right.
    ///
    /// # Errors
    /// A file is missing, cut off, damaged, of something else or of another version;
    /// which, and what to do.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let path = path.into();
        let manifest = read_manifest(&path)?;
        let headers = all_at_once(manifest.shards.iter(), |entry| {
            header::verify(&path.join(&entry.file), entry)
        })?;
        let draws = manifest.draws();
        let shards: Vec<_> = manifest.shards.iter().cloned().zip(headers).collect();
        check_names(&path, &shards)?;
        Ok(Self {
            extras: manifest.extras(),
            path,
            draws,
            shards,
        })
    }

    /// The newest checkpoint of a folder of checkpoints.
    ///
    /// # Errors
    /// There is none, or it is no good: see [`Checkpoint::open`]. Then
    /// [`Checkpoint::newest_intact`] finds an older one.
    pub fn newest(folder: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let folder = folder.as_ref();
        match Self::list(folder)?.pop() {
            Some(newest) => Self::open(newest.path),
            None => Err(none(folder)),
        }
    }

    /// The newest checkpoint that is intact, and what is wrong with each newer one.
    ///
    /// # Errors
    /// There is no checkpoint. Where none is intact: what is wrong with the newest.
    pub fn newest_intact(
        folder: impl AsRef<Path>,
    ) -> Result<(Self, Vec<CheckpointError>), CheckpointError> {
        let folder = folder.as_ref();
        let mut wrong = Vec::new();
        for listed in Self::list(folder)?.into_iter().rev() {
            match Self::open(listed.path) {
                Ok(found) => return Ok((found, wrong)),
                Err(error) => wrong.push(error),
            }
        }
        Err(wrong.into_iter().next().unwrap_or_else(|| none(folder)))
    }

    /// All checkpoints of a folder, oldest first, without a look inside.
    ///
    /// # Errors
    /// The folder cannot be read. One that does not exist has no checkpoints.
    pub fn list(folder: impl AsRef<Path>) -> Result<Vec<Listed>, CheckpointError> {
        let all = folder::list(folder.as_ref())?.into_iter();
        Ok(all.map(|(step, path)| Listed { step, path }).collect())
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was saved beside tensors.
    pub fn extras(&self) -> &Extras {
        &self.extras
    }

    /// Stages of the pipeline that wrote it, one shard each.
    pub fn stages(&self) -> usize {
        self.shards.len()
    }

    /// Parameters and buffers by name, as [`Pipeline::load`](crate::Pipeline::load)
    /// takes them: for use without the optimizer.
    ///
    /// # Errors
    /// The files have been changed since they were verified.
    pub fn weights(&self) -> Result<Vec<(String, Tensor)>, CheckpointError> {
        let mut all = Vec::new();
        for (entry, _) in &self.shards {
            let tensors = header::tensors(&self.path.join(&entry.file), entry)?;
            let weights = tensors
                .into_iter()
                .filter(|one| matches!(one.role, Role::Parameter | Role::Buffer));
            all.extend(weights.map(|one| (one.name, one.tensor)));
        }
        all.sort_by(|(left, _), (right, _)| left.cmp(right));
        Ok(all)
    }

    pub(super) fn draws(&self) -> Draws {
        self.draws
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = (PathBuf, &ShardEntry, &Header)> {
        let path = |entry: &ShardEntry| self.path.join(&entry.file);
        let shards = self.shards.iter();
        shards.map(move |(entry, header)| (path(entry), entry, header))
    }
}

fn none(folder: &Path) -> CheckpointError {
    CheckpointError::None {
        folder: folder.to_owned(),
    }
}

fn read_manifest(folder: &Path) -> Result<Manifest, CheckpointError> {
    let path = folder.join(manifest::FILE);
    let failed = |error| CheckpointError::read(&path, error);
    let about = std::fs::metadata(&path).map_err(failed)?;
    if !about.is_file() || about.len() > manifest::MOST_BYTES {
        let why = format!(
            "a manifest is a file of at most {} bytes",
            manifest::MOST_BYTES
        );
        return Err(CheckpointError::foreign(&path, why));
    }
    let mut bytes = Vec::new();
    let mut file = File::open(&path).map_err(failed)?.take(about.len());
    file.read_to_end(&mut bytes).map_err(failed)?;
    let manifest = Manifest::from_bytes(&bytes, &path)?;
    let name = folder.file_name().and_then(|name| name.to_str());
    match name.and_then(folder::step_of) {
        Some(step) if step != manifest.step => {
            let why = format!(
                "it is of step {}, though its folder is named after step {step}",
                manifest.step
            );
            Err(CheckpointError::foreign(&path, why))
        }
        _ => Ok(manifest),
    }
}

/// Refuses a tensor that stands twice.
fn check_names(path: &Path, shards: &[(ShardEntry, Header)]) -> Result<(), CheckpointError> {
    let mut seen = std::collections::BTreeSet::new();
    for (entry, header) in shards {
        if let Some((_, name)) = header.keys().find(|key| !seen.insert(*key)) {
            let why = format!("`{name}` is in another shard as well");
            return Err(CheckpointError::foreign(&path.join(&entry.file), why));
        }
    }
    Ok(())
}
