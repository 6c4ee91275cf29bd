//! Copies of 64 MiB overlapped with computation.

use anyhow::Result;
use gpipe::partitioner::render;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Pipeline, Sequential};
use serde_json::{Value, json};

use super::{median, timed};

const GPU: Device = Device::Cuda(0);
/// 64 MiB of activations per micro-batch.
const ROWS: i64 = 4096;
const WIDTH: i64 = 4096;
const MICRO_BATCHES: i64 = 8;
/// Matrix products that take about as long as the copies.
const PRODUCTS: usize = 6;

fn model() -> Sequential {
    Sequential::new()
        .layer("source", |_| nn::func(Tensor::shallow_clone))
        .layer("products", |p| {
            let config = nn::LinearConfig {
                bias: false,
                ..nn::LinearConfig::default()
            };
            let linear = nn::linear(p, WIDTH, WIDTH, config);
            nn::func(move |x| (0..PRODUCTS).fold(x.shallow_clone(), |x, _| x.apply(&linear)))
        })
}

/// A step with these devices, the input being on `from`.
fn step(devices: &[Device], from: Device) -> Result<Value> {
    let mut pipe = Pipeline::builder(model())
        .devices(devices)
        .balance(if devices.len() == 2 { &[1, 1] } else { &[2] })
        .micro_batches(MICRO_BATCHES as usize)
        .tf32(true)
        .build()?;
    let x = Tensor::ones([ROWS * MICRO_BATCHES, WIDTH], (Kind::Float, from));
    let y = Tensor::zeros([ROWS * MICRO_BATCHES], (Kind::Float, from));
    let loss = |out: &Tensor, _: &Tensor| out.mean(Kind::Float);
    let mut times = timed(3, 10, || {
        pipe.train_step(&x, &y, loss)?;
        pipe.zero_grad()?;
        Ok(())
    })?;
    let report = pipe.train_step(&x, &y, loss)?;
    let timeline = render::text(&report.read()?.timeline, 100);
    times["timeline"] = timeline.lines().collect();
    Ok(times)
}

pub(crate) fn hidden() -> Result<Value> {
    let compute = step(&[GPU], GPU)?;
    let host = Tensor::ones([ROWS, WIDTH], (Kind::Float, Device::Cpu));
    let copies = timed(3, 10, || {
        // As in a stage: into page-locked memory, then to the device.
        for _ in 0..MICRO_BATCHES {
            let pinned = host.f_pin_memory(GPU)?;
            drop(pinned.f_to_device_(GPU, Kind::Float, true, false)?);
        }
        Ok(())
    })?;
    let both = step(&[Device::Cpu, GPU], Device::Cpu)?;
    let longer = median(&compute).max(median(&copies));
    Ok(json!({
        "compute": compute,
        "copies": copies,
        "step": both,
        "step_over_longer": median(&both) / longer,
        "bytes_a_copy": ROWS * WIDTH * 4,
    }))
}
