//! Values as bytes, for other processes.
//!
//! What a stage gets from another process is what it would have got from its own: the same
//! bits, shapes, strides and alignment of memory, the same values that share memory, the same
//! that require a gradient. Kernels may choose by any of these.

mod header;
mod incoming;
mod packs;
mod tensors;

pub(crate) use header::{FIRST, Header};
pub(crate) use incoming::Incoming;
pub(crate) use tensors::Outgoing;
