//! oneDNN's kernels in place of libtorch's choice (`shim/onednn.cpp`).

use std::ffi::c_int;

use super::{Result, check};

unsafe extern "C" {
    fn gp_onednn_set(from: i64, previous: *mut i64) -> c_int;
}

/// Makes the calling thread compute convolutions, and products of at least `from` multiplications,
/// with oneDNN; with libtorch's own choice if `None`. Returns the previous setting.
pub(crate) fn set_onednn(from: Option<u64>) -> Result<Option<u64>> {
    let from = from.map_or(-1, |from| i64::try_from(from).unwrap_or(i64::MAX));
    let mut previous = -1;
    // SAFETY: `previous` lives through the call.
    check(unsafe { gp_onednn_set(from, &raw mut previous) })?;
    Ok(u64::try_from(previous).ok())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    unsafe extern "C" {
        fn gp_onednn_computed() -> i64;
        fn gp_onednn_has_products() -> c_int;
    }

    /// Counts oneDNN's computations in a forward, and in its backward.
    fn computed(
        shapes: [&[i64]; 2],
        kind: Kind,
        apply: fn(&Tensor, &Tensor) -> Tensor,
    ) -> [i64; 2] {
        // SAFETY: it reads a number.
        let count = || unsafe { gp_onednn_computed() };
        let leaf = |shape| Tensor::rand(shape, (kind, Device::Cpu)).set_requires_grad(true);
        let [left, right] = shapes.map(leaf);
        let before = count();
        let result = apply(&left, &right);
        let between = count();
        result.square().sum(kind).backward();
        [between - before, count() - between]
    }

    #[test]
    fn products_and_convolutions_are_onednns_while_it_is_on() {
        let convolution = |x: &Tensor, w: &Tensor| x.conv2d(w, None::<&Tensor>, 1, 0, 1, 1);
        let shapes: [&[i64]; 2] = [&[4, 8, 5, 5], &[6, 8, 1, 1]];
        assert_eq!(
            computed([&[4, 8], &[8, 6]], Kind::Float, Tensor::mm),
            [0, 0]
        );
        set_onednn(Some(4 * 8 * 6)).unwrap();
        // SAFETY: it reads a number.
        let products = i64::from(unsafe { gp_onednn_has_products() });
        assert_eq!(
            computed([&[4, 8], &[8, 6]], Kind::Float, Tensor::mm),
            [products, 2 * products]
        );
        assert_eq!(computed(shapes, Kind::Float, convolution), [1, 1]);
        // Fewer multiplications, one row, other numbers.
        assert_eq!(
            computed([&[3, 8], &[8, 6]], Kind::Float, Tensor::mm),
            [0, 0]
        );
        assert_eq!(
            computed([&[1, 80], &[80, 60]], Kind::Float, Tensor::mm),
            [0, 0]
        );
        assert_eq!(
            computed([&[4, 8], &[8, 6]], Kind::Double, Tensor::mm),
            [0, 0]
        );
        assert_eq!(computed(shapes, Kind::Double, convolution), [0, 0]);
        set_onednn(None).unwrap();
        assert_eq!(
            computed([&[4, 8], &[8, 6]], Kind::Float, Tensor::mm),
            [0, 0]
        );
    }
}
