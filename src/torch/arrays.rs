//! Conversion between arrays of the crate ndarray and values.
//!
//! Each direction makes exactly one copy. In: libtorch's memory is aligned to 64 bytes, that of a
//! `Vec` is not, and with other alignment a matrix product may be summed in another order. Out: a
//! tensor's memory may have other owners, which write to it.

use ndarray::{ArrayBase, ArrayD, Data, Dimension};
use tch::Tensor;
use tch::kind::Element;

use super::{TorchError, Values};

/// Makes a CPU tensor with the numbers and shape of an array of any layout.
pub fn tensor_of<S, D>(array: &ArrayBase<S, D>) -> Result<Tensor, TorchError>
where
    S: Data<Elem: Element + Clone>,
    D: Dimension,
{
    let shape: Vec<i64> = array.shape().iter().map(|&side| side as i64).collect();
    let flat = match array.as_slice() {
        Some(numbers) => Tensor::f_from_slice(numbers)?,
        // Transposed or strided: put it in order first.
        None => Tensor::f_from_slice(&array.iter().cloned().collect::<Vec<_>>())?,
    };
    Ok(flat.f_view(&shape[..])?)
}

/// Makes a CPU tensor from the numbers of an array, which may be a view or have any layout.
///
/// ```
/// use gpipe::Values;
/// use gpipe::ndarray::{Array2, array};
///
/// let x: Array2<f32> = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let values = Values::try_from(&x)?;
/// assert_eq!(values.one()?.size(), [2, 3]);
/// let transposed = Values::try_from(x.t())?;
/// assert_eq!(transposed.one()?.size(), [3, 2]);
/// # Ok::<(), anyhow::Error>(())
/// ```
///
/// So [`Pipeline::train_step`](crate::Pipeline::train_step) accepts an array as a batch. For
/// several inputs, use tch's `Tensor::try_from(&array)`.
impl<S, D> TryFrom<&ArrayBase<S, D>> for Values
where
    S: Data<Elem: Element + Clone>,
    D: Dimension,
{
    type Error = TorchError;

    fn try_from(array: &ArrayBase<S, D>) -> Result<Self, TorchError> {
        tensor_of(array).map(Self::from)
    }
}

/// As from a borrowed array.
impl<S, D> TryFrom<ArrayBase<S, D>> for Values
where
    S: Data<Elem: Element + Clone>,
    D: Dimension,
{
    type Error = TorchError;

    fn try_from(array: ArrayBase<S, D>) -> Result<Self, TorchError> {
        Self::try_from(&array)
    }
}

/// Copies the numbers of the only value, from any device.
///
/// ```
/// use gpipe::ndarray::{Array2, ArrayD, Ix2};
/// use gpipe::tch::{Device, nn};
/// use gpipe::{Pipeline, Sequential};
///
/// let model = Sequential::new().layer("head", |p| nn::linear(p, 4, 3, Default::default()));
/// let mut pipe = Pipeline::new(model, &[Device::Cpu], 2)?;
/// let outputs = pipe.forward_values(Array2::<f32>::ones((8, 4)))?;
/// let outputs: ArrayD<f32> = (&outputs).try_into()?;
/// let outputs: Array2<f32> = outputs.into_dimensionality::<Ix2>()?;
/// assert_eq!(outputs.dim(), (8, 3));
/// # Ok::<(), anyhow::Error>(())
/// ```
///
/// # Errors
/// There is not exactly one value, or its numbers have another kind than the array's.
impl<T: Element + Copy> TryFrom<&Values> for ArrayD<T> {
    type Error = TorchError;

    fn try_from(values: &Values) -> Result<Self, TorchError> {
        let tensor = values
            .one()
            .map_err(|error| TorchError::new(error.to_string()))?;
        let kind = tensor.f_kind()?;
        if kind != T::KIND {
            return Err(TorchError::new(format!(
                "a tensor of {kind:?} is no array of {:?}: convert it with `to_kind`, or ask for \
                 an array of what it is",
                T::KIND
            )));
        }
        Ok(tensor.try_into()?)
    }
}
