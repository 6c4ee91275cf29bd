//! Arrays of files: safetensors, and NumPy's `.npy` and `.npz`.

mod named;
mod npy;
mod npz;
mod part;
mod safetensors;

use std::path::Path;

use tch::{Kind, Tensor};

use super::magic::{self, Magic};
use super::{DataError, Gathered, Place, Source, room};
use gpipe_torch::TorchError;

pub(super) use named::NamedArrays;

use part::Part;

/// Bytes at each end of an array that its checksum covers.
const ENDS: usize = 1 << 20;

/// An array in a file of any size: a tensor of a safetensors file, or a NumPy array. Its items are its
/// slices along the first dimension, read on demand.
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
    kind: Kind,
    shape: Vec<i64>,
    data: Part,
    /// Bytes per item.
    item: usize,
}

impl Array {
    /// Opens a safetensors file and finds a tensor in it.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, there is no such tensor, libtorch does not support it, or
    /// it has no dimension.
    pub fn open(path: &Path, name: &str) -> Result<Self, DataError> {
        safetensors::Safetensors::open(path)?.array(name)
    }

    /// Opens a file that NumPy's `save` wrote.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, its type is not supported by libtorch, big-endian or in
    /// Fortran order, or it has no dimension.
    pub fn npy(path: &Path) -> Result<Self, DataError> {
        magic::refuse_other(path, &[Magic::Npy])?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        npy::array(&stem, &Part::file(path)?)
    }

    /// Opens an array of a file that NumPy's `savez` or `savez_compressed` wrote. Compressed arrays are
    /// held in memory; others are read on demand.
    ///
    /// Arrays that are not compressed are checked against their checksum: up to 256 MiB when opened,
    /// larger ones when [all items](Array::items) are read.
    ///
    /// # Errors
    /// As [`Array::npy`]; there is no array of that name; there is not enough memory; or the array is
    /// damaged.
    pub fn npz(path: &Path, name: &str) -> Result<Self, DataError> {
        npz::Npz::open(path)?.array(name)
    }

    /// Makes an array of this shape from bytes.
    fn of(name: &str, kind: Kind, shape: &[usize], data: Part) -> Result<Self, DataError> {
        let [items, ..] = *shape else {
            let what = format!("`{name}` is a single number and has no items");
            return Err(data.bad(0, what));
        };
        let sides = shape.iter().map(|&side| i64::try_from(side));
        let sides: Result<Vec<i64>, _> = sides.collect();
        let width = kind.elt_size_in_bytes();
        let size = shape
            .iter()
            .try_fold(width, |size, &side| size.checked_mul(side));
        match (sides, size) {
            (Ok(sides), Some(size)) if size as u64 == data.len() => Ok(Self {
                name: name.to_owned(),
                kind,
                shape: sides,
                item: size / items.max(1),
                data,
            }),
            _ => {
                let what = format!(
                    "`{name}` is said to be of {shape:?} with {width} bytes a number, but {} bytes \
                     are there: was the file copied whole?",
                    data.len()
                );
                Err(data.bad(0, what))
            }
        }
    }

    /// Name of the array.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the sizes of the dimensions; the first is the number of items.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Returns the type of the elements.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    fn offset(&self, index: usize) -> u64 {
        index as u64 * self.item as u64
    }

    /// Reads consecutive items as one tensor.
    ///
    /// # Errors
    /// The items cannot be read.
    ///
    /// # Panics
    /// The range is not within the array.
    pub fn items(&self, range: std::ops::Range<usize>) -> Result<Tensor, DataError> {
        assert!(range.end <= self.len(), "{range:?} of {}", self.len());
        if range.len() == self.len() {
            self.data.check_sum(&format!("the array `{}`", self.name))?;
        }
        let mut shape = self.shape.clone();
        shape[0] = range.len() as i64;
        self.tensor(range, &shape)
    }

    fn tensor(&self, range: std::ops::Range<usize>, shape: &[i64]) -> Result<Tensor, DataError> {
        let mut bytes = vec![0; self.item * range.len()];
        self.data.read(&mut bytes, self.offset(range.start))?;
        // A bool that is neither 0 nor 1 is undefined behaviour in libtorch.
        if self.kind == Kind::Bool {
            bytes
                .iter_mut()
                .for_each(|byte| *byte = u8::from(*byte != 0));
        }
        let tensor = Tensor::f_from_data_size(&bytes, shape, self.kind);
        tensor.map_err(|error| DataError::Item {
            place: self.place(0, range.start),
            source: TorchError::from(error).into(),
        })
    }

    /// Returns the checksum of both ends.
    fn sum(&self) -> Result<u32, DataError> {
        let len = self.data.len();
        let ends = ENDS.min(len as usize);
        let mut bytes = vec![0; ends];
        self.data.read(&mut bytes, 0)?;
        let sum = crc32c::crc32c(&bytes);
        self.data.read(&mut bytes, len - ends as u64)?;
        Ok(crc32c::crc32c_append(sum, &bytes))
    }
}

impl Source for Array {
    type Item = Tensor;

    fn len(&self) -> usize {
        self.shape[0] as usize
    }

    fn get(&self, _: u64, index: usize) -> Result<Tensor, DataError> {
        self.tensor(index..index + 1, &self.shape[1..])
    }

    fn gather(&self, _: u64, indices: &[usize]) -> Option<Gathered> {
        // Bools must be sanitized: see `tensor`.
        if self.kind == Kind::Bool {
            return None;
        }
        room::rows(indices.len(), &self.shape[1..], self.kind, |place, row| {
            let offset = self.offset(indices[place]);
            self.data.read(row, offset).is_ok()
        })
    }

    fn place(&self, _: u64, index: usize) -> Place {
        let path = self.data.path().to_owned();
        Place::Sample { path, index }
    }

    /// For large arrays, only both ends are checked.
    fn identity(&self) -> String {
        let Self {
            name, shape, kind, ..
        } = self;
        match self.sum() {
            Ok(sum) => {
                format!("`{name}`, an array of {shape:?} of {kind:?} with checksum {sum:08x}")
            }
            // Reading the array will report the same error.
            Err(error) => format!("`{name}`, an array that cannot be read ({error})"),
        }
    }
}
