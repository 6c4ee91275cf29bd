//! Reads the headers of safetensors files.

use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::Metadata;
use tch::Kind;

use gpipe_partitioner::words::listed;

use super::Array;
use super::part::Part;
use crate::DataError;
use crate::magic::{self, Magic};

/// Limit of the header's length, as in the safetensors crate.
const MOST_HEADER: u64 = 100_000_000;

/// A file with its parsed header.
#[derive(Debug)]
pub(super) struct Safetensors {
    header: Metadata,
    /// Bytes after the header.
    data: Part,
}

impl Safetensors {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        magic::refuse_other(path, &[Magic::Safetensors])?;
        let file = Part::file(path)?;
        let (header, start) = header(&file)?;
        let data = file.within(start, file.len() - start);
        let data = data.ok_or_else(|| file.bad(0, "its header is longer than the file"))?;
        Ok(Self { header, data })
    }

    /// Returns the names of the tensors, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort_unstable();
        names
    }

    pub(super) fn array(&self, name: &str) -> Result<Array, DataError> {
        let bad = |what: String| DataError::bad(self.data.path(), 0, what);
        let info = self.header.info(name).ok_or_else(|| {
            let names = self.names();
            let names = listed(names.iter().map(String::as_str));
            bad(format!("there is no tensor `{name}`; there are {names}"))
        })?;
        let kind = kind(info.dtype).ok_or_else(|| {
            bad(format!(
                "`{name}` is of {:?}, which libtorch has not",
                info.dtype
            ))
        })?;
        let (begin, end) = info.data_offsets;
        let data = self.data.within(begin as u64, (end - begin) as u64);
        let data = data.ok_or_else(|| bad(format!("`{name}` lies outside of the file")))?;
        Array::of(name, kind, &info.shape, data)
    }
}

/// Reads the header, and the offset of the data.
fn header(file: &Part) -> Result<(Metadata, u64), DataError> {
    let bad = |why: String| {
        let what = format!("this is no whole safetensors file: {why}; was it copied whole?");
        file.bad(0, what)
    };
    let bytes = file.len();
    let Some(room) = bytes.checked_sub(8) else {
        return Err(bad(format!("it has only {bytes} bytes")));
    };
    let mut length = [0; 8];
    file.read(&mut length, 0)?;
    let length = u64::from_le_bytes(length);
    if length > room.min(MOST_HEADER) {
        return Err(bad(format!(
            "its first 8 bytes announce a header of {length} bytes, but the file has {bytes}"
        )));
    }
    let mut text = vec![0; length as usize];
    file.read(&mut text, 8)?;
    let header: Metadata = serde_json::from_slice(&text)
        .map_err(|error| bad(format!("its header is damaged: {error}")))?;
    let end = (8 + length).saturating_add(header.data_len() as u64);
    if end != bytes {
        return Err(bad(format!(
            "its header says that it has {end} bytes, but it has {bytes}"
        )));
    }
    Ok((header, 8 + length))
}

fn kind(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::BOOL => Kind::Bool,
        Dtype::U8 => Kind::Uint8,
        Dtype::I8 => Kind::Int8,
        Dtype::I16 => Kind::Int16,
        Dtype::I32 => Kind::Int,
        Dtype::I64 => Kind::Int64,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F32 => Kind::Float,
        Dtype::F64 => Kind::Double,
        _ => return None,
    })
}
