//! Safetensors files, read one tensor at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata};
use tch::{Kind, Tensor};

use super::error::HuggingFaceError;
use crate::wrapped;
use gpipe_partitioner::files;

/// Limit of the header's length in the format.
const MAX_HEADER: u64 = 100_000_000;

/// A file, and the offsets of its tensors.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    header: Metadata,
    /// Offset of the first tensor.
    start: u64,
}

/// The tensors of one or several files.
#[derive(Debug)]
pub(super) struct Files {
    shards: Vec<Shard>,
    /// Prefix of all names in the files, removed here.
    prefix: String,
    /// Tensors not yet taken, with the index of their file.
    left: BTreeMap<String, usize>,
    /// Tensors taken.
    taken: BTreeMap<String, usize>,
}

impl Files {
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, HuggingFaceError> {
        let shards = paths.iter().map(|path| Shard::open(path));
        let shards: Vec<Shard> = shards.collect::<Result<_, _>>()?;
        let mut left = BTreeMap::new();
        for (number, shard) in shards.iter().enumerate() {
            for name in shard.header.offset_keys() {
                if left.insert(name.clone(), number).is_some() {
                    return Err(shard.wrong(format!("another file has a tensor `{name}` too")));
                }
            }
        }
        let taken = BTreeMap::new();
        Ok(Self {
            shards,
            prefix: String::new(),
            left,
            taken,
        })
    }

    /// Removes the prefix that a wrapper of PyTorch put before every name, where `name` is one of the
    /// model's own; *returns* the prefix. The name's `base` may be missing from it.
    pub(super) fn unwrap_names(&mut self, name: &str, base: &str) -> Option<&str> {
        let names = || self.left.keys().map(String::as_str);
        let short = name.strip_prefix(base).unwrap_or(name);
        // Neither the model nor its base alone is wrapped.
        if names().any(|own| own == name || own == short) {
            return None;
        }
        let prefix = wrapped::prefix(names(), name).or_else(|| wrapped::prefix(names(), short))?;
        let prefix = prefix.to_owned();
        let left = std::mem::take(&mut self.left).into_iter();
        let plain = left.map(|(name, file)| (name[prefix.len()..].to_owned(), file));
        self.left = plain.collect();
        self.prefix = prefix;
        Some(&self.prefix)
    }

    /// Takes a tensor in single precision; `prefix` may be missing from its name.
    pub(super) fn take(
        &mut self,
        name: &str,
        prefix: &str,
    ) -> Result<Option<Tensor>, HuggingFaceError> {
        let short = name.strip_prefix(prefix).unwrap_or(name);
        let names = [name, short].into_iter();
        let Some((name, number)) = (names.clone()).find_map(|name| self.left.remove_entry(name))
        else {
            return Ok(None);
        };
        let tensor = self.shards[number].tensor(&format!("{}{name}", self.prefix))?;
        self.taken.insert(name, number);
        Ok(Some(tensor))
    }

    /// Returns the names of tensors not taken.
    pub(super) fn rest(&self) -> Vec<String> {
        self.left.keys().cloned().collect()
    }

    /// The error about a tensor that the model does not use.
    pub(super) fn extra(&self, name: &str, why: &str) -> HuggingFaceError {
        let number = self.left.get(name).or_else(|| self.taken.get(name));
        let path = number.map(|&number| self.shards[number].path.clone());
        HuggingFaceError::Extra {
            path: path.unwrap_or_default(),
            name: format!("{}{name}", self.prefix),
            why: why.to_owned(),
        }
    }
}

impl Shard {
    fn open(path: &Path) -> Result<Self, HuggingFaceError> {
        let wrong = |why: String| HuggingFaceError::File {
            path: path.to_owned(),
            why,
        };
        let unreadable = |error: std::io::Error| wrong(format!("cannot be read: {error}"));
        let mut file = files::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let mut length = [0; 8];
        let none = |_| wrong(format!("is no safetensors file: it has only {bytes} bytes"));
        file.read_exact(&mut length).map_err(none)?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER || length > bytes.saturating_sub(8) {
            return Err(wrong(format!(
                "is no safetensors file, or a damaged one: its first 8 bytes announce a header of \
                 {length} bytes, but the file has {bytes}"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|error| wrong(format!("its safetensors header is damaged: {error}")))?;
        let start = 8 + length;
        let end = start.saturating_add(header.data_len() as u64);
        if end != bytes {
            return Err(wrong(format!(
                "is damaged: its header says that it has {end} bytes, but it has {bytes}"
            )));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            header,
            start,
        })
    }

    fn wrong(&self, why: String) -> HuggingFaceError {
        HuggingFaceError::File {
            path: self.path.clone(),
            why,
        }
    }

    fn tensor(&mut self, name: &str) -> Result<Tensor, HuggingFaceError> {
        let missing = || self.wrong(format!("has no tensor `{name}`"));
        let info = self.header.info(name).ok_or_else(missing)?;
        let kind = match info.dtype {
            Dtype::F32 => Kind::Float,
            Dtype::F16 => Kind::Half,
            Dtype::BF16 => Kind::BFloat16,
            other => {
                return Err(self.wrong(format!(
                    "`{name}` has elements of kind {other:?}, but weights are F32, F16 or BF16"
                )));
            }
        };
        let (begin, end) = info.data_offsets;
        let shape: Vec<i64> = info.shape.iter().map(|&side| side as i64).collect();
        let mut bytes = vec![0; end - begin];
        let place = SeekFrom::Start(self.start + begin as u64);
        let mut file = &self.file;
        let read = file.seek(place).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|error| self.wrong(format!("`{name}` cannot be read: {error}")))?;
        let tensor = Tensor::f_from_data_size(&bytes, &shape, kind)?;
        Ok(tensor.f_to_kind(Kind::Float)?)
    }
}
