//! Peak performance of a run's devices.

use tch::Device;

use crate::metrics::{Arithmetic, machine_peak_flops};
use gpipe_torch::Precision;

/// Returns the total peak floating-point operations per second of devices, counting a repeated GPU
/// once. `of_each` is the peak of each; by default the known peak of this machine's GPUs in that
/// precision. `None` if unknown.
pub fn peak_flops(devices: &[Device], precision: Precision, of_each: Option<f64>) -> Option<f64> {
    let mut gpus: Vec<usize> = (devices.iter())
        .filter_map(|device| match device {
            Device::Cuda(index) => Some(*index),
            _ => None,
        })
        .collect();
    let others = devices.len() - gpus.len();
    gpus.sort_unstable();
    gpus.dedup();
    let known = || (others == 0).then(|| machine_peak_flops(arithmetic(precision)))?;
    let of_each = of_each.or_else(known)?;
    Some(of_each * (others + gpus.len()) as f64)
}

/// Returns the arithmetic of matrix products.
fn arithmetic(precision: Precision) -> Arithmetic {
    match precision {
        Precision::F32 => Arithmetic::F32,
        Precision::Bf16 | Precision::Fp16 => Arithmetic::Half,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_counted_once_each() {
        let peak = |devices: &[Device]| peak_flops(devices, Precision::F32, Some(2.0));
        let cuda = Device::Cuda;
        assert_eq!(peak(&[cuda(0), cuda(1), cuda(0)]), Some(4.0));
        assert_eq!(peak(&[Device::Cpu, Device::Cpu]), Some(4.0));
    }
}
