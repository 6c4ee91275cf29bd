//! Random layers give the same numbers for any cut, schedule and thread, and leave the caller's generators
//! unchanged.

use crate::support::apart::apart;
use crate::support::*;
use gpipe::partitioner::ScheduleKind;
use gpipe::tch::{Device, Kind, Tensor, nn};
use gpipe::{Optimizer, Pipeline, Sequential, layers, optim::Sgd};

/// The library's dropout, tch's own, and a layer that draws noise itself.
fn noisy() -> Sequential {
    let linear = |p: &nn::Path<'_>| nn::linear(p, 12, 12, nn::LinearConfig::default());
    Sequential::new()
        .layer("in", linear)
        .layer("drop1", |_| layers::Dropout::new(0.3))
        .layer("middle", linear)
        .layer("drop2", |_| nn::func_t(|x, train| x.dropout(0.5, train)))
        .layer("noise", |_| nn::func(|x| x + x.randn_like() * 0.1))
        .layer("head", |p| {
            nn::linear(p, 12, 5, nn::LinearConfig::default())
        })
}

fn losses(stages: usize, schedule: ScheduleKind) -> Vec<u64> {
    let mut pipe = Pipeline::builder(noisy())
        .devices(&cpus(stages))
        .micro_batches(4)
        .schedule(schedule)
        .threads_per_stage(1)
        .seed(5)
        .build()
        .unwrap();
    let mut optimizer = Optimizer::new(Sgd {
        lr: 0.1,
        ..Sgd::default()
    });
    let (x, y) = mlp_batch(10);
    let step = |_| {
        let loss = pipe
            .train_step(&x, &y, cross_entropy)
            .unwrap()
            .read()
            .unwrap()
            .loss;
        optimizer.step(&mut pipe).unwrap();
        loss.to_bits()
    };
    (0..6).map(step).collect()
}

#[test]
fn masks_do_not_depend_on_cut_or_schedule_not_even_those_of_plain_modules() {
    let expected = losses(1, ScheduleKind::GPipe);
    assert_eq!(expected, losses(1, ScheduleKind::GPipe), "twice in a row");
    for stages in 2..=6 {
        for schedule in [ScheduleKind::GPipe, ScheduleKind::OneFOneB] {
            assert_eq!(
                losses(stages, schedule),
                expected,
                "{stages} stages, {schedule}"
            );
        }
    }
}

#[test]
fn masks_differ_between_micro_batches_layers_and_steps() {
    let model = Sequential::new()
        .layer("scale", |p| {
            nn::linear(p, 64, 64, nn::LinearConfig::default())
        })
        .layer("drop1", |_| {
            nn::func_t(|x, train| (x * 0.0 + 1.0).dropout(0.5, train))
        })
        .layer("drop2", |_| nn::func_t(|x, train| x.dropout(0.5, train)));
    let mut pipe = Pipeline::builder(model).micro_batches(2).build().unwrap();
    let x = Tensor::ones([2, 64], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for _ in 0..2 {
        let (send, rows) = std::sync::mpsc::channel();
        let loss = move |out: &Tensor, _: &Tensor| {
            send.send(Vec::<f32>::try_from(&out.detach().view([-1])).unwrap())
                .unwrap();
            out.sum(None)
        };
        pipe.train_step(&x, Tensor::zeros([2], (Kind::Float, Device::Cpu)), loss)
            .unwrap();
        seen.extend(rows.iter());
    }
    assert_eq!(seen.len(), 4, "two steps of two micro-batches");
    for (i, row) in seen.iter().enumerate() {
        // Two layers with one mask would leave half of the entries, not a quarter.
        let kept = row.iter().filter(|value| **value != 0.0).count();
        assert!(
            (6..=28).contains(&kept),
            "{kept} of 64 survive two dropouts of one half"
        );
        assert!(!seen[..i].contains(row), "two passes with the same masks");
    }
}

#[test]
fn the_callers_generator_is_neither_read_nor_moved() {
    let name = "randomness::the_callers_generator_is_neither_read_nor_moved";
    apart(name, generator_is_neither_read_nor_moved);
}

fn generator_is_neither_read_nor_moved() {
    gpipe::tch::manual_seed(77);
    let expected = Tensor::rand([4], (Kind::Float, Device::Cpu));
    gpipe::tch::manual_seed(77);
    let first = losses(2, ScheduleKind::OneFOneB);
    let drawn = Tensor::rand([4], (Kind::Float, Device::Cpu));
    assert!(
        drawn.equal(&expected),
        "a training run has moved the caller's generator"
    );
    gpipe::tch::manual_seed(78);
    assert_eq!(losses(2, ScheduleKind::OneFOneB), first);
}
