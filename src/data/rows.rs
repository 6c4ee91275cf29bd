//! Arrays in memory.

use ndarray::{Array, ArrayD, Axis, Dimension};
use tch::{Kind, Tensor};

use super::{DataError, Gathered, Number, Source, room};
use gpipe_torch::arrays::tensor_of;
use gpipe_torch::{TorchError, with_numbers};

/// Bytes at each end of an array that its checksum covers.
const ENDS: usize = 1 << 20;

/// An array in memory; its items are its slices along the first dimension, as tensors.
///
/// The array is not copied; only the items of batches are.
///
/// ```
/// use gpipe::data::{Dataset, Rows};
/// use gpipe::ndarray::{Array1, Array2};
///
/// let x = Array2::<f32>::zeros((1000, 28 * 28));
/// let y = Array1::from_iter((0..1000).map(|number| number % 10_i64));
/// let pairs = Dataset::new(Rows::new(x)?).zip(Dataset::new(Rows::new(y)?))?;
/// for batch in pairs.shuffle(usize::MAX, 7).batch(32).load()? {
///     let (x, y) = batch?;
///     assert_eq!((x.size()[1], y.dim()), (784, 1));
/// }
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Rows<T> {
    array: ArrayD<T>,
    identity: String,
}

impl<T: Number + Sync> Rows<T> {
    /// Makes a source of an array.
    ///
    /// # Errors
    /// The array is a single number, without items.
    pub fn new<D: Dimension>(array: Array<T, D>) -> Result<Self, DataError> {
        let array = array.into_dyn();
        if array.ndim() == 0 {
            let what = "an array without dimensions has no items";
            return Err(DataError::Settings(what.to_owned()));
        }
        let (shape, kind) = (array.shape(), T::KIND);
        let identity = match sum(&array) {
            Ok(sum) => format!("an array of {shape:?} of {kind:?} with checksum {sum:08x}"),
            Err(error) => return Err(DataError::Settings(error.to_string())),
        };
        Ok(Self { array, identity })
    }

    /// Returns the array.
    pub fn array(&self) -> &ArrayD<T> {
        &self.array
    }
}

/// Returns the checksum of both ends, in index order.
fn sum<T: Number>(array: &ArrayD<T>) -> Result<u32, TorchError> {
    let ends = (ENDS / size_of::<T>().max(1)).min(array.len());
    let first = array.iter().take(ends);
    let last = array.iter().skip(array.len() - ends);
    let numbers: Vec<T> = first.chain(last).copied().collect();
    let bytes = Tensor::f_from_slice(&numbers)?.f_view_dtype(Kind::Uint8)?;
    Ok(crc32c::crc32c(&Vec::<u8>::try_from(bytes)?))
}

impl<T: Number + Sync> Source for Rows<T> {
    type Item = Tensor;

    fn len(&self) -> usize {
        self.array.len_of(Axis(0))
    }

    fn get(&self, epoch: u64, index: usize) -> Result<Tensor, DataError> {
        let row = self.array.index_axis(Axis(0), index);
        tensor_of(&row).map_err(|error| DataError::Item {
            place: self.place(epoch, index),
            source: error.into(),
        })
    }

    fn gather(&self, _: u64, indices: &[usize]) -> Option<Gathered> {
        let all = self.array.as_slice()?;
        let row: usize = self.array.shape()[1..].iter().product();
        let sides = self.array.shape()[1..].iter().map(|&side| side as i64);
        let shape = [indices.len() as i64].into_iter().chain(sides);
        let mut batch = room::empty(&shape.collect::<Vec<_>>(), T::KIND).ok()?;
        let copied = with_numbers(&mut batch, |numbers: &mut [T]| {
            for (place, &index) in indices.iter().enumerate() {
                let from = &all[index * row..][..row];
                numbers[place * row..][..row].copy_from_slice(from);
            }
        });
        copied.ok()?;
        Some(Gathered::Tensor(batch))
    }

    /// For large arrays, only both ends are checked.
    fn identity(&self) -> String {
        self.identity.clone()
    }
}
