//! CUDA graphs without a device: a recorder stands in for it, and does again what a graph
//! would hold. Everything else is as it is on a device: slots, copies, sums of gradients,
//! what is refused and why.

#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used, clippy::float_cmp)]

#[path = "../support/mod.rs"]
mod support;

mod cli;
mod failures;
mod numbers;
mod one_card;
mod reasons;
mod setup;
mod slots;
