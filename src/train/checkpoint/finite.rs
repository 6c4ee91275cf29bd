//! Detects NaN and infinities in the bytes of tensors.

use tch::Kind;

/// Whether these little-endian numbers have neither NaN nor infinities. Integers have neither.
pub(super) fn all_finite(kind: Kind, bytes: &[u8]) -> bool {
    // NaN and infinities have all exponent bits set.
    match kind {
        Kind::Half => halves(bytes, 0x7c00),
        Kind::BFloat16 => halves(bytes, 0x7f80),
        // A complex number is two floats.
        Kind::Float | Kind::ComplexFloat => words(bytes),
        Kind::Double => doubles(bytes),
        Kind::Float8e5m2 => bytes.iter().all(|byte| byte & 0x7c != 0x7c),
        // These two types have no infinity, and few NaNs.
        Kind::Float8e4m3fn => bytes.iter().all(|byte| byte & 0x7f != 0x7f),
        Kind::Float8e4m3fnuz => bytes.iter().all(|byte| *byte != 0x80),
        _ => true,
    }
}

fn halves(bytes: &[u8], exponent: u16) -> bool {
    let (numbers, _) = bytes.as_chunks();
    none(numbers, |number| {
        u16::from_le_bytes(*number) & exponent == exponent
    })
}

fn words(bytes: &[u8]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let (numbers, _) = bytes.as_chunks();
    none(numbers, |number| {
        u32::from_le_bytes(*number) & EXPONENT == EXPONENT
    })
}

fn doubles(bytes: &[u8]) -> bool {
    const EXPONENT: u64 = 0x7ff0_0000_0000_0000;
    let (numbers, _) = bytes.as_chunks();
    none(numbers, |number| {
        u64::from_le_bytes(*number) & EXPONENT == EXPONENT
    })
}

/// Whether no number is NaN or infinite. Checks all without a branch in the loop, so that it is
/// vectorized and negligible beside a checksum of the same bytes.
fn none<const WIDTH: usize>(
    numbers: &[[u8; WIDTH]],
    is_one: impl Fn(&[u8; WIDTH]) -> bool,
) -> bool {
    !numbers
        .iter()
        .fold(false, |found, number| found | is_one(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::label;
    use tch::{Device, Tensor};

    fn bytes(tensor: &Tensor) -> Vec<u8> {
        let mut bytes = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        bytes
    }

    /// Agrees with libtorch for every type that shards support.
    #[test]
    fn it_is_what_libtorch_calls_finite() {
        let numbers = [0.0, -1.5, 448.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        for kind in label::kinds() {
            for number in numbers {
                // Converting NaN to integers is undefined.
                let float = Tensor::ones([1], (kind, Device::Cpu)).is_floating_point();
                if !float || (kind == Kind::Float8e4m3fnuz && number == 448.0) {
                    continue;
                }
                let one = Tensor::from_slice(&[1.0, number, 2.0]).to_kind(kind);
                let wanted = one.to_kind(Kind::Double).isfinite().all();
                let wanted = wanted.int64_value(&[]) != 0;
                let all = all_finite(kind, &bytes(&one));
                assert_eq!(all, wanted, "{number} as {kind:?}");
            }
        }
        let largest = Tensor::from_slice(&[f32::MAX, f32::MIN_POSITIVE]);
        assert!(all_finite(Kind::Float, &bytes(&largest)));
        assert!(all_finite(Kind::Int64, &[0xff; 16]), "-1 is a number");
    }
}
