//! Verified checkpoints.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use tch::Tensor;

use super::error::CheckpointError;
use super::extras::Extras;
use super::folder;
use super::header::{self, Header};
use super::manifest::{self, Manifest};
use super::needs::{self, Needs};
use super::shard_file::ShardFile;
use super::together::Together;
use gpipe_torch::Role;
use gpipe_torch::pipeline::Draws;

/// A checkpoint with every byte verified; opened by several processes, each verifies what it
/// [needs](Needs). Its files stay open, so that it can be used even after a writer of newer ones has
/// removed it.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    extras: Extras,
    draws: Draws,
    shards: Vec<(ShardFile, Header)>,
    /// Checksum of the manifest.
    sum: String,
    /// The other processes, and what this one has verified.
    together: Together,
    needs: Needs,
}

/// A checkpoint listed in a folder, not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Completed steps, from its name.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
}

impl Checkpoint {
    /// Opens a checkpoint in a folder such as `checkpoints/step-00000100`.
    ///
    /// All of its files are read and compared with the sizes and checksums in the manifest, whose own
    /// checksum is verified first.
    ///
    /// # Errors
    /// A file is missing, truncated, damaged, foreign or of another version; the error names it and
    /// says what to do.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        Self::open_part(&path.into(), &Together::alone(), &Needs::Share)
    }

    /// Opens a checkpoint, of which this process verifies its part.
    pub(super) fn open_part(
        path: &Path,
        together: &Together,
        needs: &Needs,
    ) -> Result<Self, CheckpointError> {
        let path = path.to_owned();
        let (manifest, sum) = read_manifest(&path)?;
        let files = manifest.shards.iter();
        let files = files.map(|entry| ShardFile::open(&path, entry));
        let files: Vec<_> = files.collect::<Result<_, _>>()?;
        let headers = needs::headers(&files, together, needs)?;
        let draws = manifest.draws();
        let shards: Vec<_> = files.into_iter().zip(headers).collect();
        check_names(&shards)?;
        Ok(Self {
            extras: manifest.extras(),
            path,
            draws,
            shards,
            sum,
            together: together.clone(),
            needs: needs.clone(),
        })
    }

    /// Lists all checkpoints of a folder, oldest first, without opening them.
    ///
    /// # Errors
    /// The folder cannot be read. A folder that does not exist has no checkpoints.
    pub fn list(folder: impl AsRef<Path>) -> Result<Vec<Listed>, CheckpointError> {
        let all = folder::list(folder.as_ref())?.into_iter();
        Ok(all.map(|(step, path)| Listed { step, path }).collect())
    }

    /// Returns the checkpoint's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the saved data other than tensors.
    pub fn extras(&self) -> &Extras {
        &self.extras
    }

    /// Returns the number of stages of the pipeline that wrote it: a shard each, and one more for each
    /// replica with its own tensors of the stage.
    pub fn stages(&self) -> usize {
        let files = self.shards.iter().map(|(file, _)| &file.entry.file);
        files.filter(|file| manifest::is_of_stage(file)).count()
    }

    /// Reads parameters and buffers by name, for [`Pipeline::load`](gpipe_torch::Pipeline::load): for
    /// use without the optimizer.
    ///
    /// # Errors
    /// The files have changed since they were verified.
    pub fn weights(&self) -> Result<Vec<(String, Tensor)>, CheckpointError> {
        let mut all = Vec::new();
        for (file, _) in &self.shards {
            let tensors = header::tensors(file)?;
            let weights = tensors
                .into_iter()
                .filter(|one| matches!(one.role, Role::Parameter | Role::Buffer));
            all.extend(weights.map(|one| (one.name, one.tensor)));
        }
        all.sort_by(|(left, _), (right, _)| left.cmp(right));
        Ok(all)
    }

    /// Checks that no parameter or optimizer state is NaN or infinite. Reads everything once more; one
    /// of several processes reads what it [needs](Needs).
    ///
    /// # Errors
    /// [`CheckpointError::NotFinite`] names the tensor, or the files have changed since they were
    /// verified.
    pub fn check_finite(&self) -> Result<(), CheckpointError> {
        let mut own = self.needs.shards(&self.together, &self.shards);
        own.try_for_each(|(file, _)| header::check_finite(file))
    }

    pub(super) fn together(&self) -> &Together {
        &self.together
    }

    pub(super) fn sum(&self) -> &str {
        &self.sum
    }

    pub(super) fn draws(&self) -> Draws {
        self.draws
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &(ShardFile, Header)> {
        self.shards.iter()
    }
}

/// Reads the manifest and its checksum.
fn read_manifest(folder: &Path) -> Result<(Manifest, String), CheckpointError> {
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
        _ => Ok((manifest, blake3::hash(&bytes).to_hex().to_string())),
    }
}

/// Rejects duplicate tensors.
fn check_names(shards: &[(ShardFile, Header)]) -> Result<(), CheckpointError> {
    let mut seen = std::collections::BTreeSet::new();
    for (file, header) in shards {
        if let Some((_, name)) = header.keys().find(|key| !seen.insert(*key)) {
            let why = format!("`{name}` is in another shard as well");
            return Err(CheckpointError::foreign(&file.path, why));
        }
    }
    Ok(())
}
