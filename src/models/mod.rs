//! Models as chains of layer builders.

mod gpt;
mod mlp;

pub use gpt::{Gpt, gpt};
pub use mlp::{Mlp, mlp};
