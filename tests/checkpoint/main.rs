//! Checkpoints: what is saved is what goes on, whatever happens in between.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod corrupted;
mod folders;
mod forged;
mod full_disk;
mod killed;
mod resumed;
mod run;
mod wrong_model;
