//! Arrays of the crate ndarray as values, and values as arrays.
//!
//! Each way takes one copy, and no more. In: libtorch's memory begins at a multiple of 64
//! bytes, a `Vec`'s does not, and on other memory a matrix product may be summed in another
//! order. Out: a tensor's memory may have other owners, who write into it.

use ndarray::{ArrayBase, ArrayD, Data, Dimension};
use tch::Tensor;
use tch::kind::Element;

use super::{TorchError, Values};

/// A tensor on the CPU with an array's numbers in its shape, whatever its layout.
pub(crate) fn tensor_of<S, D>(array: &ArrayBase<S, D>) -> Result<Tensor, TorchError>
where
    S: Data<Elem: Element + Clone>,
    D: Dimension,
{
    let shape: Vec<i64> = array.shape().iter().map(|&side| side as i64).collect();
    let flat = match array.as_slice() {
        Some(numbers) => Tensor::f_from_slice(numbers)?,
        // Transposed, say, or with steps: in order first.
        None => Tensor::f_from_slice(&array.iter().cloned().collect::<Vec<_>>())?,
    };
    Ok(flat.f_view(&shape[..])?)
}

/// A tensor on the CPU with the numbers of an array, which may be a view or have any layout.
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
/// So an array is what [`Pipeline::train_step`](crate::Pipeline::train_step) takes for a batch.
/// For several inputs there is `Tensor::try_from(&array)`, of tch.
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

/// As from a borrowed one.
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

/// The numbers of the only value, on whatever device it is.
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
/// There is not one value, or its numbers are of another kind than the array's.
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
