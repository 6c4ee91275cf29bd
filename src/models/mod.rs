//! Models as chains of layer builders.

mod gpt;
mod mlp;
pub mod zoo;

pub use gpt::{Gpt, gpt, gpt2};
pub use mlp::{Mlp, mlp};
