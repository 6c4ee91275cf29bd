//! Sizes of batches in bytes.

use std::any::Any;

use tch::Tensor;

use gpipe_torch::Values;

/// Returns the size of a batch of a known type: tensors, values, and pairs of these.
pub(super) fn bytes_of<B: 'static>(batch: &B) -> Option<u64> {
    let batch: &dyn Any = batch;
    if let Some(own) = batch.downcast_ref::<Tensor>() {
        return Some(tensor(own));
    }
    if let Some(own) = batch.downcast_ref::<Values>() {
        return Some(values(own));
    }
    if let Some((x, y)) = batch.downcast_ref::<(Tensor, Tensor)>() {
        return Some(tensor(x) + tensor(y));
    }
    let (x, y) = batch.downcast_ref::<(Values, Values)>()?;
    Some(values(x) + values(y))
}

fn tensor(own: &Tensor) -> u64 {
    // An undefined tensor has no numbers.
    let kind = own.f_kind().map_or(0, |kind| kind.elt_size_in_bytes());
    (own.numel() * kind) as u64
}

fn values(own: &Values) -> u64 {
    own.present().map(tensor).sum()
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn tensors_values_and_pairs_have_bytes() {
        let x = || Tensor::zeros([3, 5], (Kind::Float, Device::Cpu));
        let y = || Tensor::zeros([3], (Kind::Int64, Device::Cpu));
        assert_eq!(bytes_of(&x()), Some(60));
        assert_eq!(bytes_of(&(x(), y())), Some(84));
        assert_eq!(bytes_of(&(Values::from(x()), Values::from(y()))), Some(84));
        assert_eq!(bytes_of(&vec![1, 2]), None);
    }
}
