//! Models as chains of layer builders, and a [`zoo`] of them by name.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp))]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod amoebanet;
mod exported;
mod gpt;
pub mod hugging_face;
mod llama;
mod loss_kind;
mod lstm;
mod mlp;
mod parts;
mod resnet;
mod synthetic;
mod transformer;
mod unet;
mod vgg;
mod wrapped;
pub mod zoo;

pub use amoebanet::{AmoebaNetD, amoebanet_d};
pub use exported::{EXPORT, save_tensors};
pub use exported::{ExportedError, ExportedModel, ExportedReason, exported, exported_bytes};
pub use gpt::{Gpt, gpt};
pub use llama::{Biases, Llama, RopeScaling, llama};
pub use loss_kind::{LossKind, NamedLoss};
pub use loss_kind::{USUAL_IGNORED, class_dimension};
pub use lstm::{Lstm, lstm};
pub use mlp::{Mlp, mlp};
pub use resnet::{ResNet, resnet};
pub use transformer::{Transformer, transformer};
pub use unet::{UNet, unet};
pub use vgg::{Vgg16, vgg16};

#[cfg(test)]
mod tests;
