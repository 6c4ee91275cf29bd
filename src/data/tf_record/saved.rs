//! Saved indexes of shards.
//!
//! Scanning a shard reads a few bytes of each record: for a million records on a cold or remote disk,
//! that is a seek each. The resulting index has a few bytes per record, and is valid until the shard
//! changes.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::TfRecords;
use super::frame::AROUND;
use super::index::Shard;
use crate::DataError;
use gpipe_partitioner::files;

/// Magic bytes of an index, with the version of the format.
const MAGIC: &[u8; 8] = b"tfindex1";

impl TfRecords {
    /// Like [`TfRecords::open`], and saves the indexes in `folder`, in a file per shard named by its
    /// name, size and modification time, for later runs. Damaged shards are scanned each time. Delete
    /// the folder when it is no longer needed.
    ///
    /// # Errors
    /// As [`TfRecords::open`], or `folder` cannot be written.
    pub fn indexed(
        paths: impl IntoIterator<Item: AsRef<Path>>,
        folder: &Path,
    ) -> Result<Self, DataError> {
        fs::create_dir_all(folder).map_err(|source| DataError::write(folder, source))?;
        Self::by(paths, |path| indexed(path, folder))
    }
}

/// Returns the file in a folder for data derived from a shard, named by the shard's name, size and
/// modification time.
pub(super) fn made_of(
    path: &Path,
    about: &Metadata,
    folder: &Path,
    ending: &str,
) -> Result<PathBuf, DataError> {
    let whole = fs::canonicalize(path).map_err(|source| DataError::read(path, source))?;
    let mut sum = crc32c::crc32c(whole.as_os_str().as_encoded_bytes());
    for number in [about.len(), about.mtime() as u64, about.mtime_nsec() as u64] {
        sum = crc32c::crc32c_append(sum, &number.to_le_bytes());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(folder.join(format!("{name}.{sum:08x}.{ending}")))
}

fn indexed(path: &Path, folder: &Path) -> Result<Shard, DataError> {
    let failed = |source| DataError::read(path, source);
    let about = files::open(path).and_then(|file| file.metadata());
    let about = about.map_err(failed)?;
    let saved = made_of(path, &about, folder, "index")?;
    // A damaged or foreign index is replaced.
    let known = fs::read(&saved).ok().and_then(|own| read(path, &own));
    if let Some(shard) = known.filter(|shard| shard.size == about.len()) {
        return Ok(shard);
    }
    let shard = Shard::scan(path)?;
    if shard.broken.is_empty() {
        save(&shard, &saved).map_err(|source| DataError::write(&saved, source))?;
    }
    Ok(shard)
}

/// Writes the magic bytes, the shard's size, its checksum, the offsets of records, and a checksum of
/// all that.
fn save(shard: &Shard, saved: &Path) -> std::io::Result<()> {
    let mut all = MAGIC.to_vec();
    all.extend(shard.size.to_le_bytes());
    all.extend(shard.sum.to_le_bytes());
    all.extend(shard.starts.iter().flat_map(|start| start.to_le_bytes()));
    all.extend(crc32c::crc32c(&all).to_le_bytes());
    // Named after this process, as another one may save the same index.
    let partial = saved.with_extension(format!("{}.partial", std::process::id()));
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(&all)?;
        file.sync_all()?;
        fs::rename(&partial, saved)
    });
    if written.is_err() {
        // The incomplete file is useless; if it cannot be deleted, it is never read either.
        let _ = fs::remove_file(&partial);
    }
    written
}

fn read(path: &Path, all: &[u8]) -> Option<Shard> {
    let (all, sum) = all.split_last_chunk()?;
    if crc32c::crc32c(all) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (size, rest) = all.strip_prefix(MAGIC)?.split_first_chunk()?;
    let (sum, rest) = rest.split_first_chunk()?;
    let (starts, []) = rest.as_chunks() else {
        return None;
    };
    let starts: Vec<u64> = starts.iter().map(|own| u64::from_le_bytes(*own)).collect();
    let size = u64::from_le_bytes(*size);
    // Each range has room for a record.
    let ends = starts.iter().skip(1).chain([&size]);
    let fits =
        |(start, end): (&u64, &u64)| start.checked_add(AROUND).is_some_and(|own| own <= *end);
    let whole = starts.iter().zip(ends).all(fits);
    whole.then(|| Shard {
        path: path.to_owned(),
        size,
        starts,
        sum: u32::from_le_bytes(*sum),
        broken: BTreeMap::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_and_what_was_changed_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let saved = folder.path().join("saved.index");
        let path = Path::new("a.tfrecord");
        for starts in [vec![], vec![0], vec![0, 16, 100]] {
            let shard = Shard {
                path: path.to_owned(),
                size: 16 * starts.len() as u64 + 100,
                starts,
                sum: 7,
                broken: BTreeMap::default(),
            };
            save(&shard, &saved).unwrap();
            let all = fs::read(&saved).unwrap();
            let again = read(path, &all).unwrap();
            assert_eq!(
                (again.size, again.sum, again.starts),
                (shard.size, 7, shard.starts)
            );
            for place in 0..all.len() {
                let mut bad = all.clone();
                bad[place] ^= 1;
                assert!(read(path, &bad).is_none(), "changed at {place}");
                assert!(read(path, &all[..place]).is_none(), "cut at {place}");
            }
        }
        // A valid checksum, but overlapping records.
        let shard = Shard {
            path: path.to_owned(),
            size: 100,
            starts: vec![0, 15],
            sum: 7,
            broken: BTreeMap::default(),
        };
        save(&shard, &saved).unwrap();
        assert!(read(path, &fs::read(&saved).unwrap()).is_none());
    }
}
