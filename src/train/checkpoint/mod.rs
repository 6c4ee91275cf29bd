//! Checkpoints: a run's state on the disk, whole at every moment, and back.
//!
//! A checkpoint is a folder: one safetensors file a stage, and `manifest.json`,
//! which has their sizes and checksums, its own checksum, and all that is no tensor.
//! It is written by a [`Checkpointer`], from copies, while training goes on, and
//! read as a [`Checkpoint`], which believes no byte that it has not verified, and
//! fits into any partition. The book's page on checkpoints has every field.

mod checkpointer;
mod choose;
mod disk;
mod error;
mod extras;
#[cfg(test)]
mod faults;
mod finite;
mod folder;
mod header;
mod label;
mod lock;
mod manifest;
#[cfg(test)]
mod meanwhile;
mod needs;
mod open;
#[cfg(test)]
mod ranks;
mod restore;
mod shard;
mod shard_file;
mod together;
mod told;
mod write;

pub use checkpointer::Checkpointer;
pub use error::CheckpointError;
pub use extras::Extras;
pub use needs::Needs;
pub use open::{Checkpoint, Listed};
pub use write::Saved;
