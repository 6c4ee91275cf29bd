//! Parts around a pipeline: data, models, profiles, checkpoints.
#![allow(clippy::unwrap_used)]

mod checkpoint;
mod data;
mod profile;
#[path = "../support/mod.rs"]
mod support;
mod train;
mod zoo;
