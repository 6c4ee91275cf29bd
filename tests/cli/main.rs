//! The command as a person uses it: each test runs `gpipe-rs` as a process.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "torch")]
mod config;
mod decide;
#[cfg(feature = "torch")]
mod files;
#[cfg(feature = "torch")]
mod graphs;
mod in_browser;
#[cfg(feature = "torch")]
mod models;
#[cfg(feature = "torch")]
mod profile;
#[cfg(feature = "torch")]
mod resume;
#[cfg(feature = "torch")]
mod tensorboard;
#[cfg(feature = "torch")]
mod train;
mod using;
#[cfg(feature = "torch")]
mod zoo;
