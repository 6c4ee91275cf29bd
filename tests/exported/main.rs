//! Models exported from Python (`.pt2`) give eager PyTorch's results for every cut.
#![allow(clippy::unwrap_used, clippy::float_cmp, clippy::cast_precision_loss)]

mod back;
mod contradictions;
mod dynamic;
mod eager;
mod fixture;
mod forged;
mod grid;
mod layers;
mod lazy;
mod losses;
mod numbers;
mod refused;
#[path = "../support/mod.rs"]
mod support;
mod traffic;
mod transparent;
mod updates;
