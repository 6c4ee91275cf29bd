//! Arithmetic over all gradients of a model, in parts: each stage computes results for its own
//! parameters; their combination in model order does not depend, to the last bit, on how the model
//! is cut.

use tch::{Device, Kind, Tensor};

use super::error::TorchError;
use super::ffi;

/// The 2-norm of each tensor, all of them dense and on one device.
///
/// A tensor's norm does not depend on the others of the list, nor on the number
/// of threads. Squares are added in double precision: no finite gradient of
/// single precision overflows. NaN and infinities come out as such. On a CUDA
/// device the host waits once for the whole list.
///
/// # Errors
/// A sparse or undefined tensor, by its place in the list.
pub(crate) fn norms(tensors: &[Tensor]) -> Result<Vec<f64>, TorchError> {
    let mut norms = ffi::norms(tensors)?;
    for (tensor, norm) in tensors.iter().zip(&mut norms) {
        let double = matches!(tensor.kind(), Kind::Double | Kind::ComplexDouble);
        if double && squares_left_the_range(*norm) {
            *norm = scaled_norm(tensor, *norm)?;
        }
    }
    Ok(norms)
}

/// [`norms`] as a tensor of `f64` on the tensors' device, `[tensors]`, without a host sync.
/// None if some tensors are not dense, or not `f32`.
#[doc(alias = "foreach_norm")]
pub(crate) fn norms_there(
    tensors: &[Tensor],
    device: Device,
) -> Result<Option<Tensor>, TorchError> {
    let simple = |tensor: &Tensor| tensor.kind() == Kind::Float && !tensor.is_sparse();
    if !tensors.iter().all(simple) {
        return Ok(None);
    }
    if tensors.is_empty() {
        return Ok(Some(Tensor::f_zeros([0], (Kind::Double, device))?));
    }
    ffi::norms_there(tensors).map(Some)
}

/// [`total_norm`] of norms that [`norms_there`] gave, and what gradients are multiplied
/// with so that the total is at most `max_norm` (1 where it is not finite), an `f32`. Both
/// are where the norms are, and the host does not wait for an asynchronous device.
#[doc(alias = "clip_grad_norm_")]
pub(crate) fn clip_there(norms: &Tensor, max_norm: f64) -> Result<(Tensor, Tensor), TorchError> {
    if norms.device() == Device::Cpu {
        // The same bits as in pipelines without streams.
        let norms: Vec<f64> = Vec::try_from(norms)?;
        let total = total_norm(&norms);
        let finite = total.is_finite().then(|| clip_factor(max_norm, total));
        let factor = Tensor::from(finite.unwrap_or(1.0)).f_to_kind(Kind::Float)?;
        return Ok((Tensor::from(total), factor));
    }
    // Squares of norms of `f32` neither over- nor underflow in `f64`.
    let total = sum_there(norms.f_square()?)?.f_sqrt()?;
    let one = total.f_ones_like()?;
    let factor = total
        .f_full_like(max_norm)?
        .f_div(&total.f_add_scalar(1e-6)?)?;
    let factor = factor.f_clamp_max(1.0)?;
    let factor = factor.f_where_self(&total.f_isfinite()?, &one)?;
    Ok((total, factor.f_to_kind(Kind::Float)?))
}

/// The sum of a list of numbers, where they are, in the order of [`sum_in_halves`]. Uses up
/// their memory.
fn sum_there(mut numbers: Tensor) -> Result<Tensor, TorchError> {
    let mut count = numbers.numel() as i64;
    if count == 0 {
        return Ok(numbers.f_new_zeros([], (numbers.kind(), numbers.device()))?);
    }
    while count > 1 {
        let half = (count + 1) / 2;
        let behind = numbers.f_narrow(0, half, count - half)?;
        let _ = numbers.f_narrow(0, 0, count - half)?.f_add_(&behind)?;
        numbers = numbers.f_narrow(0, 0, half)?;
        count = half;
    }
    Ok(numbers.f_squeeze()?)
}

/// The place of the first tensor with a NaN or an infinity in it.
///
/// # Errors
/// As [`norms`].
pub(crate) fn first_non_finite(tensors: &[Tensor]) -> Result<Option<usize>, TorchError> {
    for (place, norm) in norms(tensors)?.into_iter().enumerate() {
        if !norm.is_finite() && !all_finite(&tensors[place])? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// Returns whether a tensor contains neither NaN nor infinity; always true for kinds that cannot.
pub(crate) fn finite(tensor: &Tensor) -> Result<bool, TorchError> {
    if !tensor.is_floating_point() || tensor.numel() == 0 {
        return Ok(true);
    }
    tch::no_grad(|| all_finite(tensor))
}

/// The norm of all gradients together, from the norm of each in model order.
pub(crate) fn total_norm(norms: &[f64]) -> f64 {
    let total = square_root_of_squares(norms.iter().copied());
    if !squares_left_the_range(total) {
        return total;
    }
    let largest = norms.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 || norms.iter().any(|norm| !norm.is_finite()) {
        return total;
    }
    largest * square_root_of_squares(norms.iter().map(|norm| norm / largest))
}

/// Returns the factor by which gradients with this total norm are multiplied to limit it to
/// `max_norm`: PyTorch's formula, never above 1.
pub(crate) fn clip_factor(max_norm: f64, total: f64) -> f64 {
    (max_norm / (total + 1e-6)).min(1.0)
}

fn square_root_of_squares(numbers: impl Iterator<Item = f64>) -> f64 {
    sum_in_halves(numbers.map(|x| x * x).collect()).sqrt()
}

/// Sums in an order that a device can follow with a few list additions, without a kernel of its
/// own: so stages on the host, on devices, and in several processes get the same bits. The second
/// half is added to the first one until one number is left.
fn sum_in_halves(mut numbers: Vec<f64>) -> f64 {
    while numbers.len() > 1 {
        let behind = numbers.split_off(numbers.len().div_ceil(2));
        for (own, other) in numbers.iter_mut().zip(behind) {
            *own += other;
        }
    }
    numbers.first().copied().unwrap_or(0.0)
}

/// Returns whether a root of squares may be wrong because the squares were too large or too small
/// for double precision.
fn squares_left_the_range(root: f64) -> bool {
    !(1e-140..=f64::MAX).contains(&root)
}

/// The norm divided by the largest element and multiplied back, for tensors whose squares
/// over- or underflow.
fn scaled_norm(tensor: &Tensor, plain: f64) -> Result<f64, TorchError> {
    if tensor.numel() == 0 || !all_finite(tensor)? {
        return Ok(plain);
    }
    let tensor = tensor.f_detach()?;
    let largest = tensor.f_abs()?.f_max()?.f_double_value(&[])?;
    if largest == 0.0 {
        return Ok(0.0);
    }
    let scaled = tensor.f_div_scalar(largest)?;
    Ok(largest * ffi::norms(&[scaled])?[0])
}

fn all_finite(tensor: &Tensor) -> Result<bool, TorchError> {
    Ok(tensor.f_isfinite()?.f_all()?.f_int64_value(&[])? != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f64], kind: Kind) -> Tensor {
        Tensor::from_slice(values).to_kind(kind)
    }

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    #[test]
    fn norms_of_every_kind_of_number() {
        for kind in [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16] {
            assert_eq!(norms(&[tensor(&[3.0, -4.0], kind)]).unwrap(), [5.0]);
        }
        assert_eq!(norms(&[tensor(&[3.0, -4.0], Kind::Int64)]).unwrap(), [5.0]);
        assert_eq!(norms(&[tensor(&[1.0, 0.0], Kind::Bool)]).unwrap(), [1.0]);
        let complex = Tensor::complex(
            &tensor(&[3.0, 0.0], Kind::Float),
            &tensor(&[0.0, 4.0], Kind::Float),
        );
        assert_eq!(norms(&[complex.conj()]).unwrap(), [5.0]);
        let empty = Tensor::zeros([0, 3], (Kind::Float, Device::Cpu));
        let scalar = Tensor::from(-2.0);
        assert_eq!(norms(&[empty, scalar]).unwrap(), [0.0, 2.0]);
        assert!(norms(&[]).unwrap().is_empty());
    }

    #[test]
    fn norms_of_views_are_those_of_what_is_seen() {
        let x = random(&[7, 9]);
        let rows = x.slice(0, 0, 7, 2);
        let column = x.select(1, 3);
        let broadcast = Tensor::from(2.0_f32).expand([4, 4], false);
        let got = norms(&[rows.shallow_clone(), column.shallow_clone(), broadcast]).unwrap();
        for (view, norm) in [rows, column].iter().zip(&got) {
            let plain = view.to_kind(Kind::Double).norm().double_value(&[]);
            assert!((norm - plain).abs() <= 1e-12 * plain);
        }
        assert_eq!(got[2], 8.0);
    }

    #[test]
    fn a_norm_does_not_depend_on_the_list_nor_on_threads() {
        let many: Vec<_> = [1, 15, 17, 100_003, 64]
            .into_iter()
            .map(|n| random(&[n]))
            .chain([tensor(&[0.1; 33], Kind::Half)])
            .collect();
        let together = norms(&many).unwrap();
        tch::set_num_threads(1);
        for (tensor, norm) in many.iter().zip(&together) {
            let alone = norms(&[tensor.shallow_clone()]).unwrap();
            assert_eq!(alone[0].to_bits(), norm.to_bits());
        }
    }

    #[test]
    fn the_way_of_devices_gives_the_same_norms() {
        let empty = Tensor::zeros([0], (Kind::Float, Device::Cpu));
        let list = [
            random(&[33, 5]),
            tensor(&[3.0, -4.0], Kind::Int64),
            empty,
            random(&[8]).to_kind(Kind::Half),
            random(&[6, 4]).slice(1, 0, 4, 2),
            random(&[11]),
        ];
        let there = ffi::device_norms(&list).unwrap();
        for (here, there) in norms(&list).unwrap().iter().zip(&there) {
            assert!((here - there).abs() <= 1e-12 * here, "{here} {there}");
        }
        assert!(ffi::device_norms(&[]).unwrap().is_empty());
    }

    #[test]
    fn squares_neither_overflow_nor_vanish() {
        let near = |got: f64, expected: f64| (got / expected - 1.0).abs() < 1e-12;
        let float = norms(&[tensor(&[3e38; 4], Kind::Float)]).unwrap()[0];
        assert!((float / 6e38 - 1.0).abs() < 1e-6, "{float}");
        let tiny = norms(&[tensor(&[3e-200, 4e-200], Kind::Double)]).unwrap()[0];
        assert!(near(tiny, 5e-200), "{tiny}");
        let huge = norms(&[tensor(&[3e200, 4e200], Kind::Double)]).unwrap()[0];
        assert!(near(huge, 5e200), "{huge}");
        assert!(near(total_norm(&[3e200, 4e200]), 5e200));
        assert!(near(total_norm(&[3e-200, 0.0, 4e-200]), 5e-200));
        let zeros = Tensor::zeros([3], (Kind::Double, Device::Cpu));
        assert_eq!(norms(&[zeros]).unwrap(), [0.0]);
    }

    #[test]
    fn nan_and_infinity_are_found_and_named() {
        let fine = || random(&[5]);
        assert_eq!(first_non_finite(&[]).unwrap(), None);
        assert_eq!(first_non_finite(&[fine(), fine()]).unwrap(), None);
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for kind in [Kind::Float, Kind::Double, Kind::Half] {
                let list = [fine(), tensor(&[1.0, wrong], kind), fine()];
                assert_eq!(first_non_finite(&list).unwrap(), Some(1));
                assert!(!norms(&list).unwrap()[1].is_finite());
            }
        }
        // Finite, though their norm has no number in double precision.
        let huge = tensor(&[1.7e308; 4], Kind::Double);
        assert_eq!(first_non_finite(&[huge]).unwrap(), None);
        assert!(total_norm(&[1.0, f64::NAN]).is_nan());
        assert_eq!(total_norm(&[1.0, f64::INFINITY]), f64::INFINITY);
    }

    #[test]
    fn totals_and_factors_are_pytorchs() {
        // Not -0, as was once printed if there were no gradients.
        assert_eq!(total_norm(&[]).to_bits(), 0.0_f64.to_bits());
        assert_eq!(total_norm(&[3.0, 4.0]), 5.0);
        assert_eq!(clip_factor(1.0, 5.0), 1.0 / (5.0 + 1e-6));
        assert_eq!(clip_factor(5.0, 1.0), 1.0);
        assert_eq!(clip_factor(0.0, 2.0), 0.0);
        assert_eq!(clip_factor(f64::INFINITY, 2.0), 1.0);
    }

    /// A single process adds them up on a GPU, several processes on the host. (CUDA rounds the root
    /// as the host does; libtorch on the CPU does not.)
    #[test]
    fn a_device_and_the_host_have_the_same_sum() {
        for count in (0..300).chain([1001]) {
            let norm = |place| (f64::from(place) * 0.37).sin().abs() * 3.7;
            let squares: Vec<f64> = (0..count).map(norm).collect();
            let there = sum_there(Tensor::from_slice(&squares)).unwrap();
            let there = there.double_value(&[]).to_bits();
            assert_eq!(sum_in_halves(squares).to_bits(), there, "{count}");
        }
    }

    #[test]
    fn sparse_and_undefined_tensors_are_refused_in_words() {
        let sparse = random(&[3, 3]).to_sparse_sparse_dim(2);
        let error = norms(&[random(&[2]), sparse]).unwrap_err().to_string();
        assert!(
            error.contains("tensor 1") && error.contains("Sparse"),
            "{error}"
        );
        let error = norms(&[Tensor::new()]).unwrap_err().to_string();
        assert!(
            error.contains("tensor 0") && error.contains("undefined"),
            "{error}"
        );
    }
}
