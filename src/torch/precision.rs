//! Number type in which layers compute (mixed precision).

use std::fmt;
use std::str::FromStr;

use tch::{Device, Kind, Tensor};

use super::error::TorchError;
use super::ffi::Autocast;

/// The type of numbers in which layers and the loss function compute.
///
/// Parameters, their gradients and optimizer states are always in single precision. With the
/// two shorter types, libtorch's autocast decides operator by operator, by PyTorch's lists for
/// the kind of device: matrix products, convolutions and attention take and give the shorter
/// type, losses and other operators that need the range single precision, and the rest the
/// type that they are given. It is on in the forward pass, in a recomputed one and in the loss
/// function.
#[doc(alias = "mixed precision")]
#[doc(alias = "autocast")]
#[doc(alias = "amp")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Single precision: `f32`.
    #[default]
    F32,
    /// Half the bytes with the range of single precision, and 8 bits of it: `bf16`.
    Bf16,
    /// Half the bytes with 11 bits, from 6e-8 to 65504: `fp16`. Gradients need
    /// [scaling](crate::LossScale) to stay in that range.
    Fp16,
}

impl Precision {
    /// All precisions.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Fp16];

    /// Returns the name in texts and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }

    /// The type that operators compute in under autocast.
    fn kind(self) -> Kind {
        match self {
            Self::F32 => Kind::Float,
            Self::Bf16 => Kind::BFloat16,
            Self::Fp16 => Kind::Half,
        }
    }

    /// Makes this thread compute in this precision on `device` while the result lives.
    #[doc(alias = "autocast")]
    pub(crate) fn scope(self, device: Device) -> Result<Option<Autocast>, TorchError> {
        match self {
            Self::F32 => Ok(None),
            _ => Autocast::open(device, self.kind()).map(Some),
        }
    }

    /// An output as the caller sees it: its type does not depend on the precision.
    pub(crate) fn widened(self, output: Tensor) -> Result<Tensor, TorchError> {
        match output.kind() {
            Kind::Half | Kind::BFloat16 if self != Self::F32 => Ok(output.f_to_kind(Kind::Float)?),
            _ => Ok(output),
        }
    }

    /// Adds to an error of libtorch what can be done about it, where that is known.
    pub(crate) fn explain(self, device: Device, error: anyhow::Error) -> anyhow::Error {
        // libtorch's own kernels say the first, those of oneDNN the second.
        let signs = ["not implemented for 'Half'", "could not create a primitive"];
        let no_kernel = |cause: &(dyn std::error::Error + 'static)| {
            let text = cause.to_string();
            signs.iter().any(|sign| text.contains(sign))
        };
        let other = match self {
            Self::F32 => return error,
            // oneDNN has some recurrent cells only from AVX-512 on.
            Self::Bf16 => "f32",
            Self::Fp16 => "bf16",
        };
        if device == Device::Cpu && error.chain().any(no_kernel) {
            return error.context(format!(
                "the CPU has no {self} kernel for something that this needs (use {other}, or a CUDA device)"
            ));
        }
        error
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" | "fp32" | "float32" => Ok(Self::F32),
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            "fp16" | "f16" | "float16" => Ok(Self::Fp16),
            _ => Err("must be one of f32, bf16, fp16".to_owned()),
        }
    }
}
