//! What only a CUDA device can show. Without one every test is counted as skipped, with
//! the reason in words.
//!
//! The harness is a small one of its own, because the usual one cannot say that a test was
//! skipped: `cargo test --test cuda [NAME] [-- --json FILE]`.

#![allow(clippy::unwrap_used, clippy::float_cmp)]

#[path = "../support/mod.rs"]
mod support;

mod apart;
mod graphs;
mod harness;
mod memory;
mod offload;
mod parity;
mod steps;

use std::process::ExitCode;

fn main() -> ExitCode {
    let tests = [
        parity::tests(),
        memory::tests(),
        offload::tests(),
        steps::tests(),
        graphs::tests(),
    ]
    .concat();
    harness::run(&tests, &steps::PARTS)
}
