//! Reduced precision: where it is used, which promises hold, and how gradients beyond its range are handled.

mod everywhere;
mod moby_dick;
mod overflow;
mod resume;
mod scale;
mod types;
mod zoo;

use crate::support::*;
use gpipe::tch::Tensor;
use gpipe::{Pipeline, PipelineBuilder, settings::Precision};

const SHORT: [Precision; 2] = [Precision::Bf16, Precision::Fp16];

/// A pipeline of [`mlp`] over `stages` stages, in four micro-batches.
fn builder(stages: usize, precision: Precision) -> PipelineBuilder {
    Pipeline::builder(sequential(&mlp()))
        .devices(&cpus(stages))
        .micro_batches(4)
        .threads_per_stage(1)
        .seed(5)
        .precision(precision)
}

/// Copies of the gradients that have accumulated.
fn copied(named: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
    let list = named.into_iter();
    list.map(|(name, tensor)| (name, tensor.copy())).collect()
}
