//! GPT-2 in bf16.

use anyhow::Result;
use gpipe::models::zoo::token_cross_entropy;
use gpipe::models::{Gpt, gpt};
use gpipe::partitioner::Bytes;
use gpipe::tch::{Device, Kind, Tensor};
use gpipe::{
    Optimizer, Pipeline, PipelineBuilder,
    optim::AdamW,
    settings::{Precision, Recompute},
};
use serde_json::{Value, json};

use super::{median, timed};

const GPU: Device = Device::Cuda(0);
const CONTEXT: i64 = 1024;
const BATCH: i64 = 8;

/// Sizes as in `eager.py`.
const GPT2: Gpt = Gpt {
    vocab: 50_257,
    context: CONTEXT,
    d_model: 768,
    heads: 12,
    blocks: 12,
    dropout: 0.0,
};

fn builder(sizes: Gpt, stages: usize, micro_batches: usize) -> PipelineBuilder {
    Pipeline::builder(gpt(sizes))
        .devices(&vec![GPU; stages])
        .micro_batches(micro_batches)
        .precision(Precision::Bf16)
        .tf32(true)
}

fn tokens() -> Tensor {
    let count = BATCH * CONTEXT;
    let wave = Tensor::arange(count, (Kind::Int64, GPU)) * 7919;
    wave.remainder(GPT2.vocab).view([BATCH, CONTEXT])
}

/// Times whole training steps, the update included.
fn steps(mut pipe: Pipeline, warm: usize, runs: usize) -> Result<Value> {
    let mut optimizer = Optimizer::new(AdamW::default());
    let (x, y) = (tokens(), tokens().roll([-1], [1]));
    timed(warm, runs, || {
        pipe.train_step(&x, &y, token_cross_entropy)?;
        optimizer.step(&mut pipe)?;
        Ok(())
    })
}

pub(crate) fn one_stage() -> Result<Value> {
    steps(builder(GPT2, 1, 1).build()?, 5, 20)
}

/// Like PyTorch's gradient accumulation over four micro-batches.
pub(crate) fn four_micro_batches() -> Result<Value> {
    steps(builder(GPT2, 1, 4).build()?, 5, 20)
}

/// Two stages against one, both in four micro-batches.
pub(crate) fn two_stages() -> Result<Value> {
    let one = steps(builder(GPT2, 1, 4).build()?, 5, 20)?;
    let two = steps(builder(GPT2, 2, 4).build()?, 5, 20)?;
    let ratio = median(&two) / median(&one);
    Ok(json!({"one": one, "two": two, "ratio": ratio}))
}

/// Load of the host with 32 small micro-batches.
pub(crate) fn host_share() -> Result<Value> {
    let small = Gpt {
        context: 128,
        ..GPT2
    };
    let mut pipe = builder(small, 2, 32).forbid_host_waits(true).build()?;
    let x = tokens().view([BATCH * 8, 128]);
    let mut shares = Vec::new();
    for step in 0..12 {
        let report = pipe.train_step(&x, &x, token_cross_entropy)?;
        pipe.zero_grad()?;
        if step >= 4 {
            shares.extend(report.read()?.host_share);
        }
    }
    shares.sort_by(f64::total_cmp);
    let share = shares.get(shares.len() / 2);
    Ok(json!({"host_share": share, "host_waits_in_a_step": 0, "micro_batches": 32}))
}

/// A GPT of small kernels, so that the host is slower than the device: a step and the host's share without
/// and with CUDA graphs, and whether the losses are equal.
pub(crate) fn graphs() -> Result<Value> {
    let small = Gpt {
        context: 128,
        d_model: 256,
        heads: 4,
        ..GPT2
    };
    let x = tokens().view([BATCH * 8, 128]);
    let run = |graphs: bool| -> Result<(Value, Vec<f64>, Value)> {
        let mut pipe = builder(small, 2, 8)
            .deterministic(true)
            .cuda_graphs(graphs)
            .build()?;
        let (mut losses, mut shares) = (Vec::new(), Vec::new());
        let times = timed(8, 20, || {
            let report = pipe.train_step(&x, &x, token_cross_entropy)?;
            pipe.zero_grad()?;
            losses.push(report.read()?.loss);
            shares.extend(report.read()?.host_share);
            Ok(())
        })?;
        shares.sort_by(f64::total_cmp);
        let uses = pipe.cuda_graphs()?;
        let used = uses.iter().map(|used| {
            json!({"captured": used.captured, "replayed": used.replayed, "eager": used.eager})
        });
        let told = json!({
            "step": times,
            "host_share": shares.get(shares.len() / 2),
            "stages": used.collect::<Vec<_>>(),
        });
        Ok((times, losses, told))
    };
    let (plain, plain_losses, without) = run(false)?;
    let (graphs, graph_losses, with) = run(true)?;
    Ok(json!({
        "without": without,
        "with": with,
        "ratio": median(&graphs) / median(&plain),
        "same_losses": plain_losses == graph_losses,
    }))
}

/// GPT-2 XL on two stages of 24 GiB each. On one card the two share one limit.
pub(crate) fn under_a_limit() -> Result<Value> {
    let xl = Gpt {
        d_model: 1600,
        heads: 25,
        blocks: 48,
        ..GPT2
    };
    let limit = Bytes(48 << 30);
    let pipe = builder(xl, 2, 8)
        .recompute(Recompute::Always)
        .memory_limit(limit)
        .build()?;
    gpipe::memory::reset_device_peak(GPU)?;
    let step = steps(pipe, 1, 3);
    let memory = gpipe::memory::of_device(GPU)?;
    let (_, total) = gpipe::memory::room_on(GPU)?;
    gpipe::memory::limit_device(GPU, total)?;
    Ok(json!({"limit_bytes": limit.0, "peak_bytes": memory.peak, "step": step?}))
}
