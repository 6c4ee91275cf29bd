//! The command as users run it: each test starts `gpipe-rs` as a process.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "cli")]
mod config;
mod decide;
mod devices;
#[cfg(feature = "cli")]
mod documented;
#[cfg(feature = "cli")]
mod files;
#[cfg(feature = "cli")]
mod graphs;
mod in_browser;
mod launch;
#[cfg(feature = "cli")]
mod models;
#[cfg(feature = "cli")]
mod packages;
mod peers;
#[cfg(feature = "cli")]
mod profile;
#[cfg(feature = "cli")]
mod resume;
mod run;
#[cfg(feature = "cli")]
mod samples;
#[cfg(feature = "cli")]
mod simulated;
#[cfg(feature = "cli")]
mod suggested;
#[cfg(feature = "cli")]
mod tensorboard;
#[cfg(feature = "cli")]
mod train;
mod using;
#[cfg(feature = "cli")]
mod zoo;
