//! Random models of random layers, under random settings, compared with plain tch.
//!
//! A pipeline can go wrong unnoticed where layers affect each other's values: views, in-place changes, values
//! that leave by several paths, buffers that are updated, sizes that depend on the data. This test generates
//! models of such layers at random, and compares a pipeline's losses, gradients, buffers and outputs bit for
//! bit with a plain loop over the micro-batches.
//!
//! `LAYER_FUZZ=20000` sets the number of programs, `LAYER_FUZZ_SEED=7` the first seed (a failure names its
//! own). A failure is shrunk and printed as a plain value, to be added to `regressions.rs`.
#![allow(clippy::unwrap_used)]

mod batch;
mod check;
mod effects;
mod layer;
mod machine;
mod open;
mod piped;
mod program;
mod random;
mod record;
mod reference;
mod regressions;
mod schedule;
mod sums;
mod ways;

use gpipe::settings::Kernels;

/// Programs run by default.
const PROGRAMS: u64 = 300;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name);
    text.map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}

#[test]
fn a_pipeline_computes_what_plain_tch_does() {
    let (first, count) = (number("LAYER_FUZZ_SEED", 0), number("LAYER_FUZZ", PROGRAMS));
    check::all(first..first + count, Kernels::Libtorch);
}

#[test]
fn nor_do_they_differ_with_kernels_of_onednn() {
    let (first, count) = (
        number("LAYER_FUZZ_SEED", 0),
        number("LAYER_FUZZ", PROGRAMS) / 2,
    );
    check::all(first..first + count.max(1), Kernels::OneDnn { from: 0 });
}
