//! Files of NumPy's `savez`: zip archives of `.npy` files.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use gpipe_partitioner::Bytes;
use tch::Device;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use gpipe_partitioner::words::listed;

use super::part::Part;
use super::{Array, npy};
use crate::DataError;
use crate::magic::{self, Magic};
use gpipe_partitioner::files;
use gpipe_torch::memory::room_on;

/// Extension of arrays in the archive.
const ENDING: &str = ".npy";
/// Arrays up to this many bytes are checked when opened, larger ones when read as a whole.
const CHECKED: u64 = 1 << 28;
/// Upper bound of deflate's expansion factor.
const MOST_INFLATED: u64 = 1032;

/// An archive with its directory.
pub(super) struct Npz {
    path: PathBuf,
    archive: ZipArchive<BufReader<File>>,
}

impl Npz {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        magic::refuse_other(path, &[Magic::Zip])?;
        let file = files::open(path).map_err(|source| DataError::read(path, source))?;
        let archive = ZipArchive::new(BufReader::new(file));
        Ok(Self {
            path: path.to_owned(),
            archive: archive.map_err(|error| explained(path, "this is no .npz file", error))?,
        })
    }

    /// Returns the names of the arrays, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let names = self.archive.file_names();
        let names = names.filter_map(|name| Some(name.strip_suffix(ENDING)?.to_owned()));
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names
    }

    pub(super) fn array(&mut self, name: &str) -> Result<Array, DataError> {
        let names = self.names();
        if !names.iter().any(|own| own == name) {
            let names = listed(names.iter().map(String::as_str));
            let what = format!("there is no array `{name}`; there are {names}");
            return Err(DataError::bad(&self.path, 0, what));
        }
        npy::array(name, &self.entry(name)?)
    }

    /// Returns the contents of an array's file.
    fn entry(&mut self, name: &str) -> Result<Part, DataError> {
        let path = &self.path;
        let what = format!("the array `{name}` cannot be read");
        let failed = |error| explained(path, &what, error);
        let entry = self.archive.by_name(&format!("{name}{ENDING}"));
        let mut entry = entry.map_err(failed)?;
        let (start, size) = (entry.data_start(), entry.size());
        let bad = |why: String| DataError::bad(path, start, format!("{what}: {why}"));
        if entry.compression() == CompressionMethod::Stored {
            let part = Part::file(path)?.within(start, size);
            let part = part.ok_or_else(|| bad("it is said to end behind the file".to_owned()))?;
            let part = part.with_sum(entry.crc32());
            if size <= CHECKED {
                part.check_sum(&format!("the array `{name}`"))?;
            }
            return Ok(part);
        }
        if size / MOST_INFLATED > entry.compressed_size() {
            return Err(bad(format!(
                "{} bytes cannot become {size}",
                entry.compressed_size()
            )));
        }
        refuse_too_large(size)
            .map_err(|why| DataError::Settings(format!("{}: {why}", path.display())))?;
        let mut bytes = Vec::new();
        let read = entry
            .by_ref()
            .take(size.saturating_add(1))
            .read_to_end(&mut bytes);
        read.map_err(|error| bad(format!("what is compressed is damaged: {error}")))?;
        if bytes.len() as u64 != size {
            return Err(bad(format!(
                "it is said to have {size} bytes, and has others"
            )));
        }
        Ok(Part::memory(path, bytes))
    }
}

/// Rejects arrays larger than memory: the system kills a process that uses more than there is.
fn refuse_too_large(size: u64) -> Result<(), String> {
    match room_on(Device::Cpu) {
        Ok((free, _)) if size > free.0 => Err(format!(
            "a compressed array of {} is held in memory, and {} are free: save it by numpy.savez, \
             which does not compress, or as safetensors",
            Bytes(size),
            free
        )),
        _ => Ok(()),
    }
}

fn explained(path: &Path, what: &str, error: ZipError) -> DataError {
    match error {
        ZipError::Io(source) if source.kind() != std::io::ErrorKind::UnexpectedEof => {
            DataError::bad(path, 0, format!("{what}: {source}"))
        }
        other => DataError::bad(path, 0, format!("{what}: {other}; was it copied whole?")),
    }
}
