//! Streams and events: who waits for whom, told by a device layer that writes down what
//! devices would be told. The numbers are computed on the CPU all the while.

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
