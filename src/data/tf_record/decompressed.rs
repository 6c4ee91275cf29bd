//! Decompresses shards to a folder, once.
//!
//! A record of a compressed file cannot be read by itself: all data before it must be decompressed,
//! again for each item of a shuffled epoch. So a shard is decompressed once, block by block, to a file
//! that later runs reuse.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::read::{MultiGzDecoder, ZlibDecoder};

use super::TfRecords;
use super::index::{Compressed, compressed};
use super::saved::made_of;
use crate::DataError;
use crate::idx::{DENSE, LARGE};
use gpipe_partitioner::files;

/// Bytes decompressed at a time.
const BLOCK: usize = 1 << 18;

impl TfRecords {
    /// Like [`TfRecords::open`], for files that may be compressed with gzip or zlib: these are
    /// decompressed to `folder` first, several at a time, each to a file named by its name, size and
    /// modification time, which later runs reuse. Delete the folder when it is no longer needed.
    ///
    /// # Errors
    /// As [`TfRecords::open`]; a compressed file is damaged or truncated, or decompresses to more than
    /// 64 MiB and 200 times its size; or `folder` cannot be written.
    pub fn decompressed(
        paths: impl IntoIterator<Item: AsRef<Path>>,
        folder: &Path,
    ) -> Result<Self, DataError> {
        fs::create_dir_all(folder).map_err(|source| DataError::write(folder, source))?;
        let paths: Vec<PathBuf> = paths
            .into_iter()
            .map(|path| path.as_ref().to_owned())
            .collect();
        let plain = super::records::on_threads(paths.len(), |shard| plain(&paths[shard], folder));
        Self::open(plain.into_iter().collect::<Result<Vec<_>, _>>()?)
    }
}

/// Returns an uncompressed file: itself, or a copy in the folder.
fn plain(path: &Path, folder: &Path) -> Result<PathBuf, DataError> {
    let failed = |source| DataError::read(path, source);
    let file = files::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    let Some(kind) = compressed(&file, path, about.len())? else {
        return Ok(path.to_owned());
    };
    let made = made_of(path, &about, folder, "tfrecord")?;
    if made.exists() {
        return Ok(made);
    }
    // Named after this process, as another one may write the same file.
    let partial = made.with_extension(format!("{}.partial", std::process::id()));
    let reader = BufReader::new(file);
    let reader: Box<dyn Read> = match kind {
        Compressed::Gzip => Box::new(MultiGzDecoder::new(reader)),
        Compressed::Zlib => Box::new(ZlibDecoder::new(reader)),
    };
    let copied = copy(path, about.len(), reader, &partial);
    let named = copied.and_then(|()| {
        fs::rename(&partial, &made).map_err(|source| DataError::write(&made, source))
    });
    if named.is_err() {
        // The incomplete file is useless; if it cannot be deleted, it is never read either.
        let _ = fs::remove_file(&partial);
    }
    named.map(|()| made)
}

fn copy(path: &Path, size: u64, mut from: impl Read, to: &Path) -> Result<(), DataError> {
    let written = |source| DataError::write(to, source);
    let mut file = File::create(to).map_err(written)?;
    let (mut block, mut done) = (vec![0; BLOCK], 0_u64);
    loop {
        let bytes = match from.read(&mut block) {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let what = format!(
                    "behind {done} bytes of what it becomes the compressed file is damaged or ends: \
                     {error}"
                );
                return Err(DataError::bad_path(path, what));
            }
        };
        done += bytes as u64;
        if done > LARGE && done / DENSE > size {
            let what = format!(
                "it becomes more than {DENSE} times as large: decompress it by hand if it is to"
            );
            return Err(DataError::bad_path(path, what));
        }
        file.write_all(&block[..bytes]).map_err(written)?;
    }
    file.sync_all().map_err(written)
}
