//! Checkpoints: a run's state on disk, complete at every moment.
//!
//! A checkpoint is a folder with one safetensors file per stage, and `manifest.json` with their sizes
//! and checksums, its own checksum, and everything that is not a tensor. A [`Checkpointer`] writes it
//! from copies while training continues. A [`Checkpoint`] reads it, uses only verified bytes, and fits
//! any partition. The book's page on checkpoints documents every field.

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
