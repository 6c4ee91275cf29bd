//! Choice of the library whose kernels compute products and convolutions on the CPU.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use tch::Device;

use super::error::TorchError;
use super::ffi;

/// Library whose kernels compute single-precision matrix products and convolutions on CPU devices,
/// forward and backward.
///
/// Results of the two differ in the last bits. With either, they are the same for every cut,
/// schedule, recomputation and number of processes.
#[doc(alias = "mkldnn")]
#[doc(alias = "mkl")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Kernels {
    /// libtorch's choice: MKL for products; for convolutions oneDNN or MKL by their shape and by
    /// the number of intra-op threads.
    #[default]
    Libtorch,
    /// oneDNN, which adapts to the capabilities of any maker's processor. Products need AVX-512 (or
    /// a successor), and are libtorch's elsewhere. A convolution with kernels of 1 x 1, or with a
    /// weight larger than its operand, is one product over all samples and places.
    OneDnn {
        /// Products of fewer multiplications stay libtorch's: preparing a oneDNN kernel would take
        /// longer than they do.
        from: u64,
    },
}

impl Kernels {
    /// oneDNN's kernels from where they begin to be faster, about 10 microseconds.
    pub const ONEDNN: Self = Self::OneDnn { from: 1 << 18 };

    /// Returns the kernels that were measured to be faster on this machine's processor: oneDNN's on
    /// AMD's with AVX-512, where MKL computes with AVX2, and else libtorch's choice.
    pub fn auto() -> Self {
        let processor = std::fs::read_to_string("/proc/cpuinfo");
        Self::fastest_on(&processor.unwrap_or_default())
    }

    /// Does the same for the processor that `/proc/cpuinfo` describes.
    fn fastest_on(processor: &str) -> Self {
        let value = |name: &str| {
            let lines = processor.lines().filter_map(|line| line.split_once(':'));
            let mut values = lines.filter(|(key, _)| key.trim() == name);
            values.next().map_or("", |(_, value)| value.trim())
        };
        let mut flags = value("flags").split_whitespace();
        if value("vendor_id") == "AuthenticAMD" && flags.any(|flag| flag == "avx512f") {
            Self::ONEDNN
        } else {
            Self::Libtorch
        }
    }

    /// The names in texts and files, without numbers.
    pub const NAMES: [&str; 2] = ["libtorch", "onednn"];

    /// Makes the calling thread compute with these kernels while the result lives: for comparing a
    /// pipeline's numbers with those of the same layers outside of it.
    ///
    /// # Errors
    /// This libtorch was built without oneDNN.
    pub fn scope(self) -> Result<KernelScope, TorchError> {
        let previous = ffi::set_onednn(self.least())?;
        Ok(KernelScope {
            previous,
            not_send: PhantomData,
        })
    }

    /// Makes the calling thread, which computes for `device`, use these kernels from now on.
    pub(crate) fn set_here(self, device: Device) -> Result<(), TorchError> {
        if self != Self::Libtorch && device == Device::Cpu {
            ffi::set_onednn(self.least())?;
        }
        Ok(())
    }

    fn least(self) -> Option<u64> {
        match self {
            Self::Libtorch => None,
            Self::OneDnn { from } => Some(from),
        }
    }
}

/// Scope in which a thread computes with its own [`Kernels`]; ends when dropped.
#[derive(Debug)]
#[must_use = "the kernels are those of before once it is dropped"]
pub struct KernelScope {
    previous: Option<u64>,
    /// Keeps the scope on its thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for KernelScope {
    fn drop(&mut self) {
        // Restoring an earlier setting cannot fail.
        let _ = ffi::set_onednn(self.previous);
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Libtorch => f.pad("libtorch"),
            &Self::ONEDNN => f.pad("onednn"),
            Self::OneDnn { from } => write!(f, "onednn:{from}"),
        }
    }
}

impl FromStr for Kernels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rule = || "must be libtorch, onednn or onednn:MULTIPLICATIONS".to_owned();
        match text.split_once(':') {
            None if text == "libtorch" => Ok(Self::Libtorch),
            None if text == "onednn" || text == "mkldnn" => Ok(Self::ONEDNN),
            Some(("onednn" | "mkldnn", from)) => match from.parse() {
                Ok(from) => Ok(Self::OneDnn { from }),
                Err(_) => Err(rule()),
            },
            _ => Err(rule()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_they_are_written() {
        let some = Kernels::OneDnn { from: 5 };
        for kernels in [Kernels::Libtorch, Kernels::ONEDNN, some] {
            assert_eq!(kernels.to_string().parse(), Ok(kernels));
        }
        for wrong in ["", "mkl", "onednn:", "onednn:-1", "libtorch:3"] {
            assert!(wrong.parse::<Kernels>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn onednn_is_faster_on_amds_with_avx512_alone() {
        let on = |vendor: &str, flags: &str| {
            let text = format!(
                "processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: X: Y\nflags\t\t: fpu {flags} sse\n"
            );
            Kernels::fastest_on(&text)
        };
        assert_eq!(on("AuthenticAMD", "avx2 avx512f"), Kernels::ONEDNN);
        for (vendor, flags) in [
            ("AuthenticAMD", "avx2"),
            ("GenuineIntel", "avx2 avx512f"),
            ("GenuineIntel", "avx2"),
        ] {
            assert_eq!(on(vendor, flags), Kernels::Libtorch, "{vendor} {flags}");
        }
        assert_eq!(Kernels::fastest_on(""), Kernels::Libtorch);
    }

    #[test]
    fn scopes_nest() {
        let outer = Kernels::ONEDNN.scope().unwrap();
        let inner = Kernels::Libtorch.scope().unwrap();
        assert_eq!(ffi::set_onednn(None).unwrap(), None);
        drop(inner);
        assert_eq!(ffi::set_onednn(Some(1 << 18)).unwrap(), Some(1 << 18));
        drop(outer);
        assert_eq!(ffi::set_onednn(None).unwrap(), None);
    }
}
