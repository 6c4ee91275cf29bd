//! Optimizers and learning rates, against formulas written out here.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

mod schedules;
#[path = "../support/mod.rs"]
mod support;
mod updates;
