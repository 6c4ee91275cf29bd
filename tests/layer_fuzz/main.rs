//! Random models of random layers, under random settings, against plain tch.
//!
//! What layers do to each other's values is where a pipeline can go wrong without
//! anybody noticing: views, changes in place, values that leave on several ways,
//! buffers that move, sizes that depend on the data. Here models are made of such
//! layers at random, and a pipeline's losses, gradients, buffers and outputs are
//! compared, to the bit, with a plain loop over the micro-batches.
//!
//! `LAYER_FUZZ=20000` runs so many programs, `LAYER_FUZZ_SEED=7` begins with that seed
//! (a failure names its own). A failure is shrunk and told as a plain value, which can
//! be added to `regressions.rs`.
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

/// So many programs belong to the suite.
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
