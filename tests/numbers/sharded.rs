//! Sharded optimizer states (ZeRO-1, `shard_optimizer`): every optimizer has the same bits as without, and an
//! update that fails in one copy is applied to none. tests/numbers/replicas covers the rest, with and without
//! sharding.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{
    Optimizer, Pipeline, Sequential,
    optim::{Adam, AdamW, OptimizerKind, Sgd},
};

use crate::support::*;

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Two tied layers with different owners, and one that is unused at first.
fn model() -> Sequential {
    let linear = |p: &nn::Path<'_>, from, to| nn::linear(p, from, to, nn::LinearConfig::default());
    Sequential::new()
        .layer("one", move |p| linear(p, 6, 6))
        .layer("two", move |p| linear(p, 6, 8))
        .layer("three", move |p| linear(p, 8, 6))
        .layer("four", move |p| linear(p, 6, 6))
        .layer("out", move |p| linear(p, 6, 3))
        .tie("one.weight", "four.weight")
}

fn batch(samples: i64) -> (Tensor, Tensor) {
    let x = (Tensor::arange(samples * 6, FLOAT) * 0.9)
        .sin()
        .view([samples, 6]);
    let y = Tensor::arange(samples, (Kind::Int64, Device::Cpu)).remainder(3);
    (x, y)
}

/// Replicas of a pipeline of `devices` devices.
fn pipeline(devices: usize, replicas: usize, sharded: bool) -> Pipeline {
    single_threaded();
    let builder = Pipeline::builder(model()).devices(&cpus(devices * replicas));
    let builder = builder.replicas(replicas).shard_optimizer(sharded);
    let builder = builder.tree(4).micro_batches(4).threads_per_stage(1);
    builder.seed(5).build().unwrap()
}

fn kinds() -> Vec<OptimizerKind> {
    let momentum = Sgd {
        lr: 0.1,
        momentum: 0.9,
        ..Sgd::default()
    };
    let dampened = Sgd {
        dampening: 0.3,
        ..momentum
    };
    let nesterov = Sgd {
        nesterov: true,
        ..momentum
    };
    vec![
        Adam::default().into(),
        AdamW::default().into(),
        Sgd::default().into(),
        momentum.into(),
        dampened.into(),
        nesterov.into(),
    ]
}

type Named = Vec<(String, Tensor)>;

/// Norms and losses of some steps, with clipping and a parameter group, and the final state.
fn trained(pipe: &mut Pipeline, kind: OptimizerKind, offload: bool) -> (Vec<u64>, Named) {
    let bare = Adam {
        lr: 0.02,
        ..Adam::default()
    };
    let mut optimizer = Optimizer::new(kind)
        .group(|name| name.ends_with("bias"), bare)
        .offload(offload);
    let (x, y) = batch(12);
    let mut numbers = Vec::new();
    for step in 0..4 {
        if step == 2 {
            pipe.freeze(|name| name.starts_with("two")).unwrap();
        }
        let report = pipe.train_step(&x, &y, cross_entropy).unwrap();
        numbers.push(pipe.clip_grad_norm(0.2).unwrap().to_bits());
        optimizer.step(pipe).unwrap();
        numbers.push(report.read().unwrap().loss.to_bits());
    }
    // These depend on every copy's weights.
    let outputs = pipe.forward(&x).unwrap();
    let mut left = snapshot(pipe);
    left.push(("outputs".to_owned(), outputs));
    (numbers, left)
}

#[test]
fn every_optimizer_comes_to_the_same_bits() {
    for kind in kinds() {
        let expected = trained(&mut pipeline(1, 1, false), kind, false);
        for (devices, replicas, offload) in
            [(1, 2, false), (2, 2, true), (3, 2, false), (1, 4, true)]
        {
            let case = format!("{kind:?}, p {devices}, d {replicas}, offload {offload}");
            let mut pipe = pipeline(devices, replicas, true);
            let own = trained(&mut pipe, kind, offload);
            assert_eq!(own.0, expected.0, "{case}");
            assert_same_bits(&own.1, &expected.1, &case);
        }
    }
}

/// Only one copy fails, after the others have prepared the update.
#[test]
fn an_update_that_one_copy_cannot_make_is_made_by_none() {
    let run = |sharded: bool, fails: bool| {
        let armed = Arc::new(AtomicBool::new(false));
        let own = Arc::clone(&armed);
        let once = move |_: &str| {
            assert!(!own.swap(false, Ordering::SeqCst), "no group today");
            false
        };
        let mut optimizer = Optimizer::new(AdamW::default()).group(once, AdamW::default());
        let mut pipe = pipeline(2, 4, sharded);
        let (x, y) = batch(12);
        for step in 0..3 {
            pipe.train_step(&x, &y, cross_entropy).unwrap();
            if fails && step == 1 {
                let before = (snapshot(&mut pipe), gradients(&mut pipe));
                armed.store(true, Ordering::SeqCst);
                let error = optimizer.step(&mut pipe).unwrap_err().to_string();
                assert!(error.contains("no group today"), "{error}");
                assert_same_bits(&snapshot(&mut pipe), &before.0, "weights");
                assert_same_bits(&gradients(&mut pipe), &before.1, "gradients");
            }
            optimizer.step(&mut pipe).unwrap();
        }
        let outputs = pipe.forward(&x).unwrap();
        (snapshot(&mut pipe), outputs)
    };
    let expected = run(false, false);
    let own = run(true, true);
    assert_same_bits(&own.0, &expected.0, "after it");
    assert!(own.1.equal(&expected.1), "outputs of all copies");
}

/// Between steps only the owner has a parameter's gradient, which `zero_grad` clears.
#[test]
fn gradients_are_with_the_owners_and_can_be_dropped() {
    let mut pipe = pipeline(2, 4, true);
    let (x, y) = batch(12);
    pipe.train_step(&x, &y, cross_entropy).unwrap();
    let mut one = pipeline(1, 1, false);
    one.train_step(&x, &y, cross_entropy).unwrap();
    assert_same_bits(&gradients(&mut pipe), &gradients(&mut one), "of one step");
    pipe.zero_grad().unwrap();
    assert!(gradients(&mut pipe).is_empty());
    let before = snapshot(&mut pipe);
    Optimizer::new(AdamW::default()).step(&mut pipe).unwrap();
    assert_same_bits(&snapshot(&mut pipe), &before, "without gradients");
}
