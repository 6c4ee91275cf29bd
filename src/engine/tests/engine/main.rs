//! The engine over stages that compute numbers: results, failures, and the engine's life cycle.
#![allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_wrap
)]

mod fault_positions;
mod faults;
mod hints;
mod lifecycle;
mod misuse;
mod parts;
mod properties;
mod replica_faults;
mod replicas;
mod results;
mod support;
mod turns;
