//! Shards: a stage's tensors in one safetensors file.
//!
//! The format's own crate writes whole files from memory; here they are written in pieces, with a
//! checksum of the bytes in memory rather than of those read back.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use safetensors::tensor::TensorInfo;
use serde_json::{Map, Value, json};
use tch::Tensor;

use super::disk::{Disk, Durable};
use super::error::CheckpointError;
use super::finite;
use super::label::{dtype, label};
use super::manifest::ShardEntry;
use gpipe_torch::{Portable, Role};

/// Bytes copied, hashed and written at a time.
const PIECE: usize = 1 << 20;

/// Writes tensors accepted by [`check`] to a new file, synced to the disk.
///
/// # Errors
/// The file cannot be written, or, unless `non_finite` is set, a tensor that [must be
/// finite](must_be_finite) is not.
pub(super) fn write(
    disk: &dyn Disk,
    folder: &Path,
    file: &str,
    tensors: Vec<Portable>,
    non_finite: bool,
) -> Result<ShardEntry, CheckpointError> {
    let path = folder.join(file);
    let failed = |error| CheckpointError::write("write", &path, error);
    let mut inner = disk.create(&path).map_err(failed)?;
    let mut out = Summed {
        inner: &mut *inner,
        sum: blake3::Hasher::new(),
        bytes: 0,
    };
    let count = tensors.len() as u64;
    let tensors = in_order(tensors);
    out.write(&header(&tensors).map_err(failed)?)
        .map_err(failed)?;
    let mut piece = vec![0; PIECE];
    for (_, one) in tensors {
        let all_finite = write_tensor(&mut out, &one.tensor, &mut piece, &failed)?;
        if !all_finite && !non_finite && must_be_finite(&one.role) {
            return Err(CheckpointError::not_finite(&path, &one.role, one.name));
        }
    }
    let (sum, bytes) = (out.sum.finalize(), out.bytes);
    inner.sync().map_err(failed)?;
    Ok(ShardEntry {
        file: file.to_owned(),
        bytes,
        blake3: sum.to_hex().to_string(),
        tensors: count,
    })
}

/// Checks that shards support these tensors.
///
/// # Errors
/// The first unsupported tensor.
pub(super) fn check(tensors: &[Portable]) -> Result<(), CheckpointError> {
    let foreign = tensors
        .iter()
        .find(|one| dtype(one.tensor.kind()).is_none());
    foreign.map_or(Ok(()), |one| {
        Err(CheckpointError::Kind {
            name: one.name.clone(),
            kind: format!("{:?}", one.tensor.kind()),
        })
    })
}

/// Whether training cannot continue if this tensor is NaN or infinite, as every update starts from it.
/// A buffer may be a mask with infinities, and gradients may be dropped.
pub(super) fn must_be_finite(role: &Role) -> bool {
    let role = role.plain();
    matches!(role, Role::Parameter | Role::Optimizer(_) | Role::Outer(_))
}

/// Returns labels and tensors, widest types first, so that all are aligned.
fn in_order(tensors: Vec<Portable>) -> Vec<(String, Portable)> {
    let mut all: Vec<_> = tensors
        .into_iter()
        .map(|one| (label(&one.role, &one.name), one))
        .collect();
    all.sort_by(|(left, a), (right, b)| {
        let width = |one: &Portable| one.tensor.kind().elt_size_in_bytes();
        width(b).cmp(&width(a)).then_with(|| left.cmp(right))
    });
    all
}

/// Returns the header and its length: a JSON object with a field per tensor.
fn header(tensors: &[(String, Portable)]) -> io::Result<Vec<u8>> {
    // The format of the tensors, a value that readers look for.
    let about = BTreeMap::from([("format", "pt")]);
    let mut fields = Map::from_iter([("__metadata__".to_owned(), json!(about))]);
    let mut begin = 0;
    for (label, Portable { tensor, .. }) in tensors {
        let Some(dtype) = dtype(tensor.kind()) else {
            let kind = tensor.kind();
            return Err(io::Error::other(format!("{label} is of type {kind:?}")));
        };
        let end = begin + tensor.numel() * tensor.kind().elt_size_in_bytes();
        let info = TensorInfo {
            dtype,
            shape: tensor.size().iter().map(|&size| size as usize).collect(),
            data_offsets: (begin, end),
        };
        fields.insert(label.clone(), serde_json::to_value(info)?);
        begin = end;
    }
    let mut text = serde_json::to_vec(&Value::Object(fields))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok([&(text.len() as u64).to_le_bytes(), text.as_slice()].concat())
}

/// Writes a tensor; returns whether all of it is finite, which is checked in pieces while they are in
/// the processor's caches.
fn write_tensor(
    out: &mut Summed<'_>,
    tensor: &Tensor,
    piece: &mut [u8],
    failed: &dyn Fn(io::Error) -> CheckpointError,
) -> Result<bool, CheckpointError> {
    let refused = |error: tch::TchError| CheckpointError::Pipeline(error.into());
    let width = tensor.kind().elt_size_in_bytes();
    let flat = tensor.f_view([-1]).map_err(refused)?;
    let (all, most) = (flat.numel(), piece.len() / width);
    let mut all_finite = true;
    for begin in (0..all).step_by(most) {
        let count = most.min(all - begin);
        let part = flat
            .f_narrow(0, begin as i64, count as i64)
            .map_err(refused)?;
        let bytes = &mut piece[..count * width];
        part.f_copy_data_u8(bytes, count).map_err(refused)?;
        all_finite &= finite::all_finite(tensor.kind(), bytes);
        out.write(bytes).map_err(failed)?;
    }
    Ok(all_finite)
}

/// A file, with the checksum and number of the bytes written.
struct Summed<'a> {
    inner: &'a mut dyn Durable,
    sum: blake3::Hasher,
    bytes: u64,
}

impl Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.inner.write_all(bytes)
    }
}
