//! Tensors like others: the same form in new memory.

use tch::Tensor;

use crate::copies::{self, same_strides};
use crate::error::TorchError;
use crate::stage::border::SkipList;
use crate::stage::inputs::Inputs;
use crate::values::Values;

/// A copy with the same strides.
pub(super) fn copy(tensor: Option<&Tensor>) -> Result<Option<Tensor>, TorchError> {
    tensor.map(same_strides).transpose()
}

/// Copies of values, to be kept by others.
pub(super) fn copy_values(values: &Values) -> Result<Values, TorchError> {
    values.iter().map(copy).collect()
}

/// Copies gradients.
pub(super) fn copy_list(list: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>, TorchError> {
    list.iter().map(|one| copy(one.as_ref())).collect()
}

/// Copies skip values.
pub(super) fn copy_skips(skips: &[(usize, Option<Tensor>)]) -> Result<SkipList, TorchError> {
    let copy = |(skip, value): &(usize, Option<Tensor>)| Ok((*skip, copy(value.as_ref())?));
    skips.iter().map(copy).collect()
}

/// Copies all inputs of a segment.
pub(super) fn copy_inputs(inputs: &Inputs) -> Result<Inputs, TorchError> {
    let main = copy_values(inputs.main())?;
    Ok(Inputs::new(main, copy_skips(inputs.skips())?))
}

/// Numbers from one list of values to another of the same shape.
pub(super) fn fill<'a>(
    to: impl Iterator<Item = Option<&'a Tensor>>,
    from: impl Iterator<Item = Option<&'a Tensor>>,
) -> Result<(), TorchError> {
    for pair in to.zip(from) {
        match pair {
            (Some(to), Some(from)) => copies::fill(&once(to)?, &once(from)?)?,
            (None, None) => {}
            _ => {
                return Err(TorchError::new(
                    "a value is there that was not when a graph was captured, or the other way round",
                ));
            }
        }
    }
    Ok(())
}

/// Every place of its memory once.
fn once(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let mut once = tensor.f_detach()?;
    let strides = once.stride();
    for (dimension, (size, stride)) in tensor.size().into_iter().zip(strides).enumerate() {
        if stride == 0 && size > 1 {
            once = once.f_narrow(dimension as i64, 0, 1)?;
        }
    }
    Ok(once)
}
