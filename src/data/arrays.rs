//! Arrays of safetensors files.

use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::Metadata;
use tch::{Kind, Tensor};

use super::disk_file::DiskFile;
use super::{DataError, Place, Source};
use crate::TorchError;

/// Bytes at each end of an array that its checksum is of.
const ENDS: usize = 1 << 20;
/// The longest header that is read, as in the safetensors crate.
const MOST_HEADER: u64 = 100_000_000;

/// A tensor of a safetensors file of any size; its items, which are read as they are asked
/// for, are its parts along the first dimension.
///
/// ```no_run
/// use gpipe::data::{Array, Dataset};
///
/// let file = std::path::Path::new("train.safetensors");
/// let pairs = Dataset::new(Array::open(file, "x")?).zip(Dataset::new(Array::open(file, "y")?))?;
/// for batch in pairs.shuffle(usize::MAX, 7).batch(32).load()? {
///     let (x, y) = batch?;
/// }
/// # Ok::<(), gpipe::data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Array {
    name: String,
    file: Arc<DiskFile>,
    kind: Kind,
    shape: Vec<i64>,
    /// Where the data begins.
    start: u64,
    /// Bytes of an item.
    item: usize,
}

impl Array {
    /// Opens a file and finds a tensor in it.
    ///
    /// # Errors
    /// The file cannot be read or is damaged; there is no such tensor, or none that
    /// libtorch could have, or it has no dimension.
    pub fn open(path: &Path, name: &str) -> Result<Self, DataError> {
        let file = DiskFile::open(path)?;
        let bad = |what: String| DataError::bad(path, 0, what);
        let (header, data) = header(&file)?;
        let info = header.info(name).ok_or_else(|| {
            let mut names = header.offset_keys();
            names.sort_unstable();
            bad(format!("there is no tensor `{name}`; there are {names:?}"))
        })?;
        let kind = kind(info.dtype).ok_or_else(|| {
            bad(format!(
                "`{name}` is of {:?}, which libtorch has not",
                info.dtype
            ))
        })?;
        let [items, ..] = *info.shape else {
            return Err(bad(format!("`{name}` is a single number and has no items")));
        };
        let (begin, end) = info.data_offsets;
        Ok(Self {
            name: name.to_owned(),
            kind,
            shape: info.shape.iter().map(|&side| side as i64).collect(),
            start: data + begin as u64,
            item: (end - begin) / items.max(1),
            file: Arc::new(file),
        })
    }

    /// The sizes of the dimensions; the first is the number of items.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The kind of the numbers.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    fn offset(&self, index: usize) -> u64 {
        self.start + index as u64 * self.item as u64
    }

    /// The checksum of both ends.
    fn sum(&self) -> Result<u32, DataError> {
        let (start, end) = (self.start, self.offset(self.len()));
        let ends = ENDS.min((end - start) as usize);
        let mut bytes = vec![0; ends];
        self.file.read(&mut bytes, start)?;
        let sum = crc32c::crc32c(&bytes);
        self.file.read(&mut bytes, end - ends as u64)?;
        Ok(crc32c::crc32c_append(sum, &bytes))
    }
}

/// What a file says of its tensors, and where the first one begins.
fn header(file: &DiskFile) -> Result<(Metadata, u64), DataError> {
    let bad = |why: String| {
        let what = format!("this is no whole safetensors file: {why}; was it copied whole?");
        DataError::bad(file.path(), 0, what)
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

impl Source for Array {
    type Item = Tensor;

    fn len(&self) -> usize {
        self.shape[0] as usize
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Tensor, DataError> {
        let mut bytes = vec![0; self.item];
        self.file.read(&mut bytes, self.offset(index))?;
        let tensor = Tensor::f_from_data_size(&bytes, &self.shape[1..], self.kind);
        tensor.map_err(|error| DataError::Item {
            place: self.place(epoch, index),
            source: TorchError::from(error).into(),
        })
    }

    fn place(&self, _: u64, index: usize) -> Place {
        Place::file(self.file.path(), self.offset(index))
    }

    /// Of large arrays only both ends are looked at.
    fn identity(&self) -> String {
        let Self {
            name, shape, kind, ..
        } = self;
        match self.sum() {
            Ok(sum) => {
                format!("`{name}`, an array of {shape:?} of {kind:?} with checksum {sum:08x}")
            }
            // No position is one in it; reading it will tell the same.
            Err(error) => format!("`{name}`, an array that cannot be read ({error})"),
        }
    }
}
