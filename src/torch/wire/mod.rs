//! Encoding of values as bytes, for other processes.
//!
//! A stage receives from another process exactly what its own would have sent: the same bits,
//! shapes, strides and alignment of memory, shared memory and gradient requirements. Kernels may
//! choose by any of these.

mod header;
mod incoming;
mod packs;
mod tensors;

pub(crate) use header::{FIRST, Header};
pub(crate) use incoming::Incoming;
pub(crate) use tensors::Outgoing;
