//! Peak performance of GPUs, and of the devices of a run.

use std::fs;
use std::path::Path;

use tch::Device;

use gpipe_torch::Precision;

/// Type of arithmetic in matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// 32-bit numbers with libtorch's default: no tensor cores.
    F32,
    /// 16-bit numbers (fp16 or bf16) with 32-bit sums, on tensor cores.
    Half,
}

/// A part of the name, and TFLOP/s of 32-bit and of 16-bit numbers, for dense matrices by the makers'
/// data sheets. If two match, the longer one counts.
const KNOWN: [(&str, f64, f64); 17] = [
    ("H200", 67.0, 989.0),
    ("H200 NVL", 60.0, 835.0),
    ("H100", 67.0, 989.0),
    ("H100 PCIe", 51.0, 756.0),
    ("H100 NVL", 60.0, 835.0),
    ("A100", 19.5, 312.0),
    ("A30", 10.3, 165.0),
    ("A40", 37.4, 149.7),
    ("A10", 31.2, 125.0),
    ("L40S", 91.6, 362.0),
    ("L40", 90.5, 181.0),
    ("L4", 30.3, 121.0),
    ("V100-SXM2", 15.7, 125.0),
    ("V100-PCIE", 14.0, 112.0),
    ("T4", 8.1, 65.0),
    ("RTX 4090", 82.6, 165.2),
    ("RTX 3090", 35.6, 71.0),
];

/// Returns the peak floating-point operations per second of a GPU by name, if known (a product and a
/// sum count as two).
///
/// ```
/// use gpipe::train::metrics::{Arithmetic, gpu_peak_flops};
///
/// assert_eq!(gpu_peak_flops("NVIDIA A100-SXM4-80GB", Arithmetic::Half), Some(312e12));
/// assert_eq!(gpu_peak_flops("a GPU of tomorrow", Arithmetic::F32), None);
/// ```
pub fn gpu_peak_flops(name: &str, arithmetic: Arithmetic) -> Option<f64> {
    let fits = |part: &str| {
        name.match_indices(part).any(|(at, _)| {
            let joins = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
            let (before, after) = (&name[..at], &name[at + part.len()..]);
            !joins(before.chars().next_back()) && !joins(after.chars().next())
        })
    };
    let known = KNOWN.iter().filter(|(part, ..)| fits(part));
    let (_, single, half) = known.max_by_key(|(part, ..)| part.len())?;
    Some(
        1e12 * if arithmetic == Arithmetic::F32 {
            single
        } else {
            half
        },
    )
}

/// Returns the peak of this machine's GPUs, if the driver tells their names and all are alike.
pub fn machine_peak_flops(arithmetic: Arithmetic) -> Option<f64> {
    let names = names(Path::new("/proc/driver/nvidia/gpus"));
    let (first, others) = names.split_first()?;
    let alike = others.iter().all(|name| name == first);
    alike.then(|| gpu_peak_flops(first, arithmetic))?
}

/// Returns the driver's names of all GPUs, from the line `Model:` of their files.
fn names(folder: &Path) -> Vec<String> {
    let gpus = fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = gpus.filter_map(|gpu| fs::read_to_string(gpu.path().join("information")).ok());
    let name = |text: String| {
        let mut lines = text.lines();
        let model = lines.find_map(|line| line.strip_prefix("Model:"))?;
        Some(model.trim().to_owned())
    };
    texts.filter_map(name).collect()
}

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
    fn a_gpu_is_known_by_the_longest_part_of_its_name() {
        let half = |name| gpu_peak_flops(name, Arithmetic::Half);
        assert_eq!(half("NVIDIA H100 80GB HBM3"), Some(989e12));
        assert_eq!(half("NVIDIA H100 PCIe"), Some(756e12));
        assert_eq!(half("NVIDIA L40S"), Some(362e12));
        assert_eq!(half("NVIDIA L40"), Some(181e12));
        assert_eq!(half("Tesla V100-SXM2-16GB"), Some(125e12));
        assert_eq!(half("NVIDIA A10G"), None, "it is another");
        assert_eq!(gpu_peak_flops("Tesla T4", Arithmetic::F32), Some(8.1e12));
    }

    #[test]
    fn the_driver_names_gpus() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(names(&folder.path().join("nowhere")), [""; 0]);
        let gpu = folder.path().join("0000:01:00.0");
        fs::create_dir(&gpu).unwrap();
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 18\n";
        fs::write(gpu.join("information"), text).unwrap();
        assert_eq!(names(folder.path()), ["NVIDIA H200"]);
    }

    #[test]
    fn devices_are_counted_once_each() {
        let peak = |devices: &[Device]| peak_flops(devices, Precision::F32, Some(2.0));
        let cuda = Device::Cuda;
        assert_eq!(peak(&[cuda(0), cuda(1), cuda(0)]), Some(4.0));
        assert_eq!(peak(&[Device::Cpu, Device::Cpu]), Some(4.0));
    }
}
