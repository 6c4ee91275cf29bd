//! Arrays of safetensors files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use tch::{Kind, Tensor};

use super::mapped::map;
use super::{DataError, Place, Source};
use crate::TorchError;

/// Bytes at each end of an array that its checksum is of.
const ENDS: usize = 1 << 20;

/// A tensor of a safetensors file, mapped, whatever its size; its items are its parts
/// along the first dimension.
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
    path: PathBuf,
    name: String,
    file: Arc<Mmap>,
    kind: Kind,
    shape: Vec<i64>,
    /// Where the data begins.
    start: usize,
    /// Bytes of an item.
    item: usize,
}

impl Array {
    /// Maps a file and finds a tensor in it.
    ///
    /// # Errors
    /// The file cannot be read or is damaged; there is no such tensor, or none that
    /// libtorch could have, or it has no dimension.
    pub fn open(path: &Path, name: &str) -> Result<Self, DataError> {
        let file = map(path)?;
        let bad = |what: String| DataError::bad(path, 0, what);
        let all = SafeTensors::deserialize(&file).map_err(|error| {
            bad(format!(
                "this is no whole safetensors file: {error}; was it copied whole?"
            ))
        })?;
        let view = all.tensor(name).map_err(|_| {
            let mut names = all.names();
            names.sort_unstable();
            bad(format!("there is no tensor `{name}`; there are {names:?}"))
        })?;
        let kind = kind(view.dtype()).ok_or_else(|| {
            bad(format!(
                "`{name}` is of {:?}, which libtorch has not",
                view.dtype()
            ))
        })?;
        let [items, ..] = *view.shape() else {
            return Err(bad(format!("`{name}` is a single number and has no items")));
        };
        let data = view.data();
        let start = data.as_ptr() as usize - file.as_ptr() as usize;
        let item = data.len() / items.max(1);
        let shape = view.shape().iter().map(|&side| side as i64).collect();
        Ok(Self {
            path: path.to_owned(),
            name: name.to_owned(),
            kind,
            shape,
            start,
            item,
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
        let bytes = &self.file[self.start + index * self.item..][..self.item];
        let tensor = Tensor::f_from_data_size(bytes, &self.shape[1..], self.kind);
        tensor.map_err(|error| DataError::Item {
            place: self.place(epoch, index),
            source: TorchError::from(error).into(),
        })
    }

    fn place(&self, _: u64, index: usize) -> Place {
        Place::file(&self.path, (self.start + index * self.item) as u64)
    }

    /// Of large arrays only both ends are looked at.
    fn identity(&self) -> String {
        let Self {
            name, shape, kind, ..
        } = self;
        let data = &self.file[self.start..][..self.item * self.len()];
        let ends = ENDS.min(data.len());
        let sum = crc32c::crc32c(&data[..ends]);
        let sum = crc32c::crc32c_append(sum, &data[data.len() - ends..]);
        format!("`{name}`, an array of {shape:?} of {kind:?} with checksum {sum:08x}")
    }
}
