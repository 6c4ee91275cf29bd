//! Streams and events: the order of operations, checked by a device layer that records the commands to
//! devices. The numbers are computed on the CPU meanwhile.

#![allow(clippy::unwrap_used, clippy::float_cmp)]

#[path = "../support/mod.rs"]
mod support;

mod broken;
mod callers;
mod graphs;
mod joins;
mod lost;
mod offload;
mod optimizer;
mod random;
mod replicas;
mod schedules;
mod setup;
mod skipped;
