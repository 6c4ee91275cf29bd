//! The CUDA part, on a GPU or on simulated ones.
//!
//! Without a GPU the tests run on simulated devices (`make simulated-gpus`; `make test` builds them), then
//! again with random delays; without either every test counts as skipped, with the reason.
//!
//! It has a small harness of its own, because the usual one cannot report a test as skipped: `cargo test
//! --test cuda [NAME] [-- --seeds N] [--json FILE]`. With `GPIPE_SIMULATE_GPUS` in the environment the tests
//! run once, on these devices.

#![allow(clippy::unwrap_used, clippy::float_cmp)]

#[path = "../support/mod.rs"]
mod support;

mod apart;
mod batches;
mod exported;
mod faults;
mod graphs;
mod grid;
mod harness;
mod lost;
mod memory;
mod mutations;
mod offload;
mod parity;
mod processes;
mod replicas;
mod report;
mod rounds;
mod simulated;
mod skipped;
mod steps;
mod stress;
mod tree;

use std::process::ExitCode;

use harness::Group;

fn main() -> ExitCode {
    let groups = [
        Group::anywhere(parity::tests()),
        Group::anywhere(memory::tests()).once(),
        Group::anywhere(offload::tests()),
        Group::anywhere(offload::memory_tests()).once(),
        Group::simulated(offload::counted_tests()).once(),
        Group::anywhere(steps::tests()),
        Group::simulated(steps::simulated_tests()).once(),
        Group::anywhere(graphs::tests()),
        Group::anywhere(graphs::once_tests()).once(),
        Group::anywhere(tree::tests()),
        Group::anywhere(replicas::tests()),
        Group::anywhere(exported::tests()).once(),
        Group::anywhere(stress::tests())
            .once()
            .settings(rounds::DELAYS),
        Group::simulated(simulated::tests()).once(),
        Group::simulated(batches::tests()).once(),
        Group::simulated(faults::tests()).once(),
        Group::simulated(lost::tests()).once(),
        Group::simulated(skipped::tests()).once(),
        Group::simulated(processes::tests()),
        Group::simulated(processes::simulated_tests()).once(),
        Group::simulated(grid::tests()).once(),
        Group::simulated(mutations::tests()).once(),
    ];
    harness::run(
        &groups,
        &[
            &steps::PARTS[..],
            &batches::PARTS,
            &lost::PARTS,
            &mutations::PARTS,
            &processes::PARTS,
        ]
        .concat(),
    )
}
