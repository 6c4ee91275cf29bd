//! What is around a pipeline: data, models, profiles, checkpoints.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

mod checkpoint;
mod data;
mod profile;
#[path = "../support/mod.rs"]
mod support;
mod train;
mod zoo;
