//! Splitting mini-batches into micro-batches, and joining them.

use tch::Tensor;
use thiserror::Error;

use crate::{TorchError, Values};

/// A batch that cannot be split, or outputs that cannot be joined.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// There is no tensor to split.
    #[error("the {what} holds no tensor")]
    Empty {
        /// `input` or `target`.
        what: &'static str,
    },
    /// A tensor has no dimension 0.
    #[error("tensor {index} of the {what} is a single number: dimension 0 must be the samples")]
    Scalar {
        /// `input`, `target` or `output`.
        what: &'static str,
        /// Index of the tensor.
        index: usize,
    },
    /// Tensors disagree about the number of samples.
    #[error(
        "tensor {index} of the {what} has {found} samples (dimension 0), but the batch has {expected}"
    )]
    Samples {
        /// `input` or `target`.
        what: &'static str,
        /// Index of the tensor.
        index: usize,
        /// Its dimension 0.
        found: i64,
        /// Samples of the first tensor.
        expected: i64,
    },
    /// A batch of no samples.
    #[error("the batch has no samples")]
    NoSamples,
    /// A batch in which the loss function counts nothing.
    #[error(
        "nothing in the batch counts: the loss function gave every micro-batch the weight 0 \
         (leave such batches out)"
    )]
    NoWeight,
    /// libtorch reported an error.
    #[error(transparent)]
    Torch(#[from] TorchError),
}

impl From<tch::TchError> for BatchError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}

/// Returns the number of samples of a batch: dimension 0, which all tensors must share.
pub(crate) fn samples(
    values: &Values,
    what: &'static str,
    expected: Option<i64>,
) -> Result<i64, BatchError> {
    let mut samples = expected;
    for (index, tensor) in values.iter().enumerate() {
        let Some(tensor) = tensor else { continue };
        let found = *tensor
            .size()
            .first()
            .ok_or(BatchError::Scalar { what, index })?;
        let expected = *samples.get_or_insert(found);
        if found != expected {
            return Err(BatchError::Samples {
                what,
                index,
                found,
                expected,
            });
        }
    }
    match samples {
        None => Err(BatchError::Empty { what }),
        Some(0) => Err(BatchError::NoSamples),
        Some(samples) => Ok(samples),
    }
}

/// Returns the sizes of `micro_batches` micro-batches of `samples` samples: as even as possible,
/// the larger ones first, and none empty, so with few samples there are fewer.
pub fn sizes(samples: i64, micro_batches: usize) -> Vec<i64> {
    let count = i64::try_from(micro_batches)
        .unwrap_or(i64::MAX)
        .min(samples)
        .max(1);
    (0..count)
        .map(|number| samples / count + i64::from(number < samples % count))
        .collect()
}

/// Cuts every tensor along dimension 0 into parts of these sizes. The parts are views, detached
/// from any graph, and require a gradient if the whole does.
pub(crate) fn scatter(values: &Values, sizes: &[i64]) -> Result<Vec<Values>, BatchError> {
    let mut parts: Vec<Values> = sizes.iter().map(|_| Values::new()).collect();
    for tensor in values.iter() {
        let Some(tensor) = tensor else {
            parts.iter_mut().for_each(|part| part.push(None));
            continue;
        };
        let (tensor, wanted) = (tensor.f_detach()?, tensor.requires_grad());
        let mut start = 0;
        for (part, &size) in parts.iter_mut().zip(sizes) {
            let view = tensor.f_narrow(0, start, size)?;
            part.push(Some(if wanted {
                view.f_set_requires_grad(true)?
            } else {
                view
            }));
            start += size;
        }
    }
    Ok(parts)
}

/// Joins the parts of a batch along dimension 0, in order. A value that is absent in any part is
/// absent.
pub(crate) fn gather(parts: Vec<Values>) -> Result<Values, BatchError> {
    let columns = columns(parts).into_iter().enumerate();
    columns.map(|(index, column)| join(column, index)).collect()
}

/// Moves the parts to the device of the first present one.
pub(crate) fn together(parts: Vec<Values>) -> Result<Vec<Values>, TorchError> {
    let all = parts.iter().flat_map(Values::present);
    let mut devices: Vec<_> = all.map(Tensor::device).collect();
    devices.dedup();
    let &[device, _, ..] = &devices[..] else {
        return Ok(parts);
    };
    let there = |tensor: Tensor| tch::no_grad(|| tensor.f_to_device(device));
    let parts = parts.into_iter().map(|part| part.try_map(there));
    Ok(parts.collect::<Result<_, _>>()?)
}

/// Joins the gradients of a batch's parts. A gradient absent in some parts (nothing depends on
/// their samples) is zero there; one absent in all parts is absent.
pub(crate) fn gather_gradients(parts: Vec<Values>, sizes: &[i64]) -> Result<Values, BatchError> {
    let columns = columns(parts).into_iter().enumerate();
    columns
        .map(|(index, column)| join(with_zeros(column, sizes)?, index))
        .collect()
}

/// Groups the parts by value.
fn columns(parts: Vec<Values>) -> Vec<Vec<Option<Tensor>>> {
    let width = parts.iter().map(Values::len).max().unwrap_or(0);
    let mut columns: Vec<Vec<Option<Tensor>>> = (0..width).map(|_| Vec::new()).collect();
    for part in parts {
        for (column, value) in columns.iter_mut().zip(part) {
            column.push(value);
        }
    }
    columns
}

/// Fills absent parts with zeros, if others are present.
fn with_zeros(
    mut column: Vec<Option<Tensor>>,
    sizes: &[i64],
) -> Result<Vec<Option<Tensor>>, TorchError> {
    let Some(like) = column.iter().flatten().next().map(Tensor::shallow_clone) else {
        return Ok(column);
    };
    let samples_have = like.size().split_off(1);
    for (part, &size) in column.iter_mut().zip(sizes) {
        if part.is_none() {
            let shape = [&[size], samples_have.as_slice()].concat();
            *part = Some(like.f_new_zeros(shape, (like.kind(), like.device()))?);
        }
    }
    Ok(column)
}

fn join(column: Vec<Option<Tensor>>, index: usize) -> Result<Option<Tensor>, BatchError> {
    let Some(tensors) = column.into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    if tensors.len() > 1 && tensors.iter().any(|tensor| tensor.dim() == 0) {
        return Err(BatchError::Scalar {
            what: "output",
            index,
        });
    }
    match <[_; 1]>::try_from(tensors) {
        Ok([only]) => Ok(Some(only)),
        // Without autograd, as the parts were made: autograd refuses such views.
        Err(tensors) => Ok(Some(tch::no_grad(|| Tensor::f_cat(&tensors, 0))?)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sizes_are_even_and_cover_the_batch(samples in 1_i64..500, micro_batches in 1_usize..64) {
            let sizes = sizes(samples, micro_batches);
            prop_assert_eq!(sizes.iter().sum::<i64>(), samples);
            prop_assert!(sizes.len() <= micro_batches);
            let (least, most) = (sizes.iter().min().copied(), sizes.iter().max().copied());
            prop_assert!(least >= Some(1) && most <= least.map(|least| least + 1));
        }
    }

    #[test]
    fn ten_samples_in_four_and_two_in_four() {
        assert_eq!(sizes(10, 4), [3, 3, 2, 2]);
        assert_eq!(sizes(2, 4), [1, 1]);
    }
}
