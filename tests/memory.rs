//! The counting allocator under a whole process: tensors from before it, and
//! pipelines that train over it.
#![cfg(feature = "torch")]
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Mutex, MutexGuard};
use std::thread;

use gpipe::memory::{self, Account};
use gpipe::layers::TransformerBlock;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Reduction, Tensor};
use gpipe::{AdamW, MemoryReport, Optimizer, Pipeline, Recompute, Sequential};
use support::*;

/// Tensors from before anything counted, and the word to be the only test that
/// runs: every test begins here.
fn alone() -> MutexGuard<'static, Option<Vec<Tensor>>> {
    static EARLY: Mutex<Option<Vec<Tensor>>> = Mutex::new(None);
    // A test that failed has left nothing that the others need.
    let mut early = EARLY.lock().unwrap_or_else(|failed| failed.into_inner());
    early.get_or_insert_with(|| {
        let sizes = [0, 1, 1 << 10, 1 << 20];
        sizes
            .map(|size| Tensor::ones([size], (Kind::Float, Device::Cpu)))
            .into()
    });
    memory::install().unwrap();
    early
}

#[test]
fn tensors_from_before_are_freed_and_grown_as_ever() {
    let mut guard = alone();
    let mut early = std::mem::take(guard.as_mut().unwrap());
    let account = Account::new().unwrap();
    let _scope = account.enter();
    let sum = early[2].shallow_clone() + 1.0;
    assert_eq!(sum.sum(Kind::Int64).int64_value(&[]), 2048);
    let _ = early[1].resize_([4096]);
    let late = early.pop();
    thread::spawn(move || drop(late)).join().unwrap();
    drop(early);
    assert_eq!(account.current(), 4096);
}

#[test]
fn training_counts_to_the_same_level_step_after_step_and_to_the_same_numbers() {
    let _alone = alone();
    let (chain, (x, y)) = (convnet(), image_batch(8));
    let mut pipe = Pipeline::builder(sequential(&chain))
        .devices(&cpus(2))
        .micro_batches(4)
        .threads_per_stage(1)
        .build()
        .unwrap();
    let plain = Plain::like(&chain, &mut pipe);
    single_threaded();
    plain.accumulate(&x, &y, &[2; 4]);
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    assert_same_bits(&gradients(&mut pipe), &plain.gradients(), "counted");
    let mut optimizer = Optimizer::new(AdamW::default());
    let mut step = || {
        pipe.train_step(&x, &y, cross_entropy).unwrap();
        optimizer.step(&mut pipe).unwrap();
    };
    (0..3).for_each(|_| step());
    let level = memory::live().unwrap();
    for _ in 0..20 {
        step();
        assert_eq!(memory::live().unwrap(), level);
    }
}

/// Eight equal blocks, whose activations are much larger than their gradients.
fn blocks() -> Sequential {
    (0..8).fold(Sequential::new(), |model, number| {
        model.try_layer(format!("block.{number}"), |p| {
            TransformerBlock::new(p, 32, 2, 8, 0.1)
        })
    })
}

/// The memory of a step that is not the first, with sixteen micro-batches.
fn memory_of(schedule: ScheduleKind, recompute: Recompute) -> MemoryReport {
    let mut pipe = Pipeline::builder(blocks())
        .devices(&cpus(4))
        .schedule(schedule)
        .micro_batches(16)
        .recompute(recompute)
        .threads_per_stage(1)
        .measure_memory(true)
        .build()
        .unwrap();
    let x = Tensor::ones([32, 32, 32], (Kind::Float, Device::Cpu));
    let loss = |out: &Tensor, y: &Tensor| out.mse_loss(y, Reduction::Mean);
    let mut step = || pipe.train_step(&x, &x, loss).unwrap().memory.unwrap();
    step();
    step()
}

#[test]
fn print() {
    let _alone = alone();
    for schedule in ScheduleKind::ALL {
        if schedule == ScheduleKind::ForwardOnly { continue; }
        for recompute in [Recompute::Never, Recompute::Always] {
            let memory = memory_of(schedule, recompute.clone());
            println!("{schedule} {recompute:?}");
            for (n, d) in memory.devices.iter().enumerate() {
                println!("  d{n} peak {} held {} predicted {} left {}", d.peak, d.held, d.predicted, d.left);
            }
            for (n, d) in memory.stages.iter().enumerate() {
                let d = d.unwrap();
                println!("  s{n} peak {} held {} predicted {} left {}", d.peak, d.held, d.predicted, d.left);
            }
        }
    }
}
