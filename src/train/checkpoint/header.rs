//! Reads shards: first their verified contents, then tensors.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, TensorView};
use tch::Tensor;

use super::error::CheckpointError;
use super::finite::all_finite;
use super::label;
use super::manifest::ShardEntry;
use super::shard::must_be_finite;
use super::shard_file::ShardFile;
use gpipe_torch::pipeline::Form;
use gpipe_torch::{Portable, Role};

/// Types and shapes of a shard's tensors.
pub(super) type Header = BTreeMap<(Role, String), Form>;

/// Limit of the header's length, as in the safetensors crate.
const MOST_HEADER: u64 = 100_000_000;

/// Reads a shard once, in pieces, and trusts nothing until its checksum is verified.
pub(super) fn verify(shard: &ShardFile) -> Result<Header, CheckpointError> {
    let (path, entry) = (&*shard.path, &shard.entry);
    let failed = |error| CheckpointError::read(path, error);
    let mut bytes = shard.bytes()?;
    let mut sum = blake3::Hasher::new();
    let text = text(&mut bytes, entry).map_err(failed)?;
    sum.update(&text);
    sum.update_reader(bytes).map_err(failed)?;
    check_sum(&sum, path, entry)?;
    parsed(&text, path, entry)
}

/// Reads a shard's header without verification, to decide whether the shard is needed. If the header is
/// invalid, the whole shard is verified, which finds the error.
pub(super) fn glance(shard: &ShardFile) -> Result<Header, CheckpointError> {
    let (path, entry) = (&*shard.path, &shard.entry);
    let text = text(&mut shard.bytes()?, entry);
    let text = text.map_err(|error| CheckpointError::read(path, error))?;
    parsed(&text, path, entry).or_else(|_| verify(shard))
}

/// Reads the header with its length, as far as possible.
fn text(bytes: &mut impl Read, entry: &ShardEntry) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if entry.bytes >= 8 {
        bytes.take(8).read_to_end(&mut text)?;
        let length = length(&text).unwrap_or_default().min(MOST_HEADER);
        bytes.take(length).read_to_end(&mut text)?;
    }
    Ok(text)
}

fn length(text: &[u8]) -> Option<u64> {
    let (length, _) = text.split_first_chunk()?;
    Some(u64::from_le_bytes(*length))
}

fn parsed(text: &[u8], path: &Path, entry: &ShardEntry) -> Result<Header, CheckpointError> {
    let (Some(length), Some(json)) = (length(text), text.get(8..)) else {
        return Err(CheckpointError::foreign(path, "it has no header"));
    };
    if length != json.len() as u64 || json.is_empty() {
        return Err(CheckpointError::foreign(path, "it has no header"));
    }
    let room = entry.bytes - text.len() as u64;
    header(json, room, path, entry)
}

/// Reads the tensors of a shard and verifies them again, as the file may have changed.
pub(super) fn tensors(shard: &ShardFile) -> Result<Vec<Portable>, CheckpointError> {
    let mut all = Vec::new();
    each(shard, |role, name, view| {
        let foreign = |why| CheckpointError::foreign(&shard.path, why);
        let (kind, shape) = form(view.dtype(), view.shape()).map_err(foreign)?;
        let tensor = Tensor::f_from_data_size(view.data(), &shape, kind)
            .map_err(|error| CheckpointError::Pipeline(error.into()))?;
        all.push(Portable { role, name, tensor });
        Ok(())
    })?;
    Ok(all)
}

/// Checks that all values are finite that [must be](must_be_finite).
pub(super) fn check_finite(shard: &ShardFile) -> Result<(), CheckpointError> {
    each(shard, |role, name, view| {
        let kind = label::kind(view.dtype());
        let finite = kind.is_none_or(|kind| all_finite(kind, view.data()));
        if finite || !must_be_finite(&role) {
            return Ok(());
        }
        Err(CheckpointError::not_finite(&shard.path, &role, name))
    })
}

/// Passes each tensor of a shard to a job, once the checksum is verified.
fn each(
    shard: &ShardFile,
    mut job: impl FnMut(Role, String, &TensorView<'_>) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let path = &shard.path;
    let mut bytes = Vec::new();
    let read = shard.bytes()?.read_to_end(&mut bytes);
    read.map_err(|error| CheckpointError::read(path, error))?;
    let mut sum = blake3::Hasher::new();
    sum.update(&bytes);
    check_sum(&sum, path, &shard.entry)?;
    let foreign = |why: String| CheckpointError::foreign(path, why);
    let all = SafeTensors::deserialize(&bytes).map_err(|error| foreign(error.to_string()))?;
    for (label, view) in all.tensors() {
        let (role, name) = named(&label).map_err(foreign)?;
        job(role, name, &view)?;
    }
    Ok(())
}

fn check_sum(sum: &blake3::Hasher, path: &Path, entry: &ShardEntry) -> Result<(), CheckpointError> {
    if sum.finalize().to_hex().as_str() == entry.blake3 {
        return Ok(());
    }
    Err(CheckpointError::Checksum {
        path: path.to_owned(),
    })
}

/// Parses a header, if it is valid and fills the file.
fn header(
    text: &[u8],
    room: u64,
    path: &Path,
    entry: &ShardEntry,
) -> Result<Header, CheckpointError> {
    let foreign = |why: String| CheckpointError::foreign(path, why);
    let metadata: Metadata = serde_json::from_slice(text)
        .map_err(|error| foreign(format!("its header is none: {error}")))?;
    let mut header = Header::new();
    let mut places = Vec::new();
    for (label, info) in metadata.tensors() {
        let (role, name) = named(&label).map_err(foreign)?;
        let (kind, shape) =
            form(info.dtype, &info.shape).map_err(|why| foreign(format!("`{label}`: {why}")))?;
        let bytes = shape
            .iter()
            .try_fold(kind.elt_size_in_bytes() as u64, |bytes, &size| {
                bytes.checked_mul(size as u64)
            });
        places.push((info.data_offsets, bytes, label));
        header.insert((role, name), (kind, shape));
    }
    places.sort();
    let mut end = 0;
    for ((from, to), bytes, label) in places {
        if from as u64 != end || bytes.and_then(|bytes| end.checked_add(bytes)) != Some(to as u64) {
            return Err(foreign(format!("`{label}` is not where it should be")));
        }
        end = to as u64;
    }
    if end != room || header.len() as u64 != entry.tensors {
        let (has, says) = (header.len(), entry.tensors);
        let why = format!(
            "its header has {has} tensors of {end} bytes, where the manifest says {says} and there \
             are {room} bytes"
        );
        return Err(foreign(why));
    }
    Ok(header)
}

fn named(label: &str) -> Result<(Role, String), String> {
    let found = label::parse(label).map(|(role, name)| (role, name.to_owned()));
    found.ok_or_else(|| {
        format!("it has a tensor `{label}`, which is neither of a model nor of an optimizer")
    })
}

fn form(dtype: safetensors::Dtype, shape: &[usize]) -> Result<Form, String> {
    let kind = label::kind(dtype).ok_or_else(|| format!("libtorch has no type {dtype}"))?;
    let sizes = shape.iter().map(|&size| i64::try_from(size));
    let sizes = sizes.collect::<Result<_, _>>();
    Ok((kind, sizes.map_err(|_| format!("a shape of {shape:?}"))?))
}
